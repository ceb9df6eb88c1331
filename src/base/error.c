#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local struct dt_error_state state;

/* Messages quote files that may hold anything: what would steer a terminal does not get there. */
static void tame(char *text)
{
    for (char *p = text; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\n' && *p != '\t') || *p == 0x7f)
            *p = '?';
}

int dt_error_set(int code, const char *file, int line, const char *fmt, ...)
{
    /* Arguments may point into the old message (a message that quotes another), so format aside. */
    char text[sizeof state.message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tame(text);
    memcpy(state.message, text, sizeof text);
    state.code = code;
    state.trail[0] = '\0';
    return dt_error_pass(code, file, line);
}

int dt_error_pass(int code, const char *file, int line)
{
    const char *slash = strstr(file, "src/");
    size_t used = strlen(state.trail);
    snprintf(state.trail + used, sizeof state.trail - used, "%s%s:%d", used ? " < " : "",
             slash ? slash + 4 : file, line);
    return code;
}

int dt_error_context(int code, const char *fmt, ...)
{
    char text[2 * sizeof state.message + 4];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof state.message, fmt, args);
    va_end(args);
    tame(text);
    strcat(strcat(text, ": "), state.message);
    memcpy(state.message, text, sizeof state.message);
    state.message[sizeof state.message - 1] = '\0';
    return code;
}

const char *dt_error_message(void)
{
    return state.message;
}

const char *dt_error_trail(void)
{
    return state.trail;
}

struct entry {
    int code, exit_code;
    const char *name, *text;
};

static const struct entry *find(int code)
{
    static const struct entry table[] = {
#define X(name, value, exit_code, text) {value, exit_code, #name, text},
        DT_ERRORS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].code == code)
            return &table[i];
    return &table[1]; /* an unknown code is an internal error */
}

const char *dt_error_name(int code)
{
    return find(code)->name;
}

const char *dt_error_text(int code)
{
    return find(code)->text;
}

int dt_error_exit_code(int code)
{
    return find(code)->exit_code;
}

void dt_error_clear(void)
{
    memset(&state, 0, sizeof state);
}

void dt_error_save(int code, struct dt_error_state *out)
{
    *out = state;
    out->code = code;
}

int dt_error_restore(const struct dt_error_state *in)
{
    state = *in;
    return in->code;
}
