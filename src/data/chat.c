/* Writes conversations by a template, as text or as ids with loss masks.
 *
 * Ids must be those of the whole text, because tokens join across the borders of what we put
 * together, but only the template may write special tokens. So the text is cut where the template
 * writes one: a *run* between two special tokens is encoded as a whole, with special tokens
 * switched off. Where a run begins to train, the ids that its beginning alone would have had do not
 * train. */
#include "base/arena.h"
#include "base/error.h"
#include "data/chat_internal.h"
#include "data/row.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct dt_chat {
    const struct dt_chat_template *t;
    const struct dt_tokenizer *tokenizer;
    int32_t bos, eos;
};

/* ---- the order of things ---- */

static int write_piece(const struct dt_chat_sink *sink, const char *piece, bool trains)
{
    while (piece && *piece) {
        if (*piece == '\1') {
            const char *end = strchr(piece, '\2');
            DT_TRY(sink->special(sink->context, piece + 1, (size_t)(end - piece) - 1, trains));
            piece = end + 1;
            continue;
        }
        size_t n = strcspn(piece, "\1");
        DT_TRY(sink->text(sink->context, piece, n, trains));
        piece += n;
    }
    return DT_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static struct dt_slice trimmed(struct dt_slice s, bool left, bool right)
{
    while (left && s.n > 0 && is_blank(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (right && s.n > 0 && is_blank(s.p[s.n - 1]))
        s.n--;
    return s;
}

static int write_content(const struct dt_chat_template *t, const struct dt_chat_sink *sink,
                         struct dt_slice s, bool trains)
{
    s = trimmed(s, t->trim, t->trim);
    return s.n ? sink->text(sink->context, s.p, s.n, trains) : DT_OK;
}

static const char *const role_names[] = {"system", "user", "assistant", "tool"};

static int check_turns(const struct dt_chat_template *t, const struct dt_turn *turns, int64_t count)
{
    int64_t first = count > 0 && turns[0].role == DT_ROLE_SYSTEM ? 1 : 0;
    if (first && !t->system_before && !t->fold_before)
        return DT_FAIL(DT_E_DATA, "the chat template %s has no place for a system turn", t->name);
    if (first && !t->system_before && count < 2)
        return DT_FAIL(DT_E_DATA,
                       "the chat template %s writes a system turn into the user's, and there "
                       "is none",
                       t->name);
    for (int64_t i = first; i < count; i++) {
        enum dt_chat_role r = turns[i].role;
        if (r == DT_ROLE_TOOL && !t->tool_before)
            return DT_FAIL(DT_E_DATA,
                           "turn %" PRId64 ": the chat template %s has no place for a tool's "
                           "turn",
                           i + 1, t->name);
        bool user = (i - first) % 2 == 0;
        if (t->alternate && r != (user ? DT_ROLE_USER : DT_ROLE_ASSISTANT))
            return DT_FAIL(DT_E_DATA,
                           "turn %" PRId64 " is of %s, but with the chat template %s user and "
                           "assistant take turns, the user first",
                           i + 1, role_names[r], t->name);
    }
    return DT_OK;
}

static int write_user(const struct dt_chat_template *t, const struct dt_turn *turns, int64_t i,
                      const struct dt_chat_sink *sink)
{
    bool folded = i == 1 && turns[0].role == DT_ROLE_SYSTEM && !t->system_before;
    DT_TRY(write_piece(sink, t->user_before, false));
    struct dt_slice content = trimmed(turns[i].content, t->trim && !folded, t->trim);
    if (folded) { /* white space goes at the ends of both together */
        struct dt_slice system = turns[0].content;
        struct dt_slice after = {t->fold_after, strlen(t->fold_after)};
        if (t->trim && content.n == 0)
            after = trimmed(after, false, true);
        DT_TRY(write_piece(sink, t->fold_before, false));
        if (system.n)
            DT_TRY(sink->text(sink->context, system.p, system.n, false));
        if (after.n)
            DT_TRY(sink->text(sink->context, after.p, after.n, false));
    }
    if (content.n)
        DT_TRY(sink->text(sink->context, content.p, content.n, false));
    return write_piece(sink, t->user_after, false);
}

static int write_turn(const struct dt_chat_template *t, const struct dt_turn *turns, int64_t i,
                      const struct dt_chat_sink *sink)
{
    struct dt_slice content = turns[i].content;
    switch (turns[i].role) {
    case DT_ROLE_SYSTEM:
        if (!t->system_before)
            return DT_OK; /* with the first user turn */
        DT_TRY(write_piece(sink, t->system_before, false));
        DT_TRY(write_content(t, sink, content, false));
        return write_piece(sink, t->system_after, false);
    case DT_ROLE_USER:
        if (i > 1 || (i == 1 && turns[0].role != DT_ROLE_SYSTEM))
            DT_TRY(write_piece(sink, t->user_between, false));
        return write_user(t, turns, i, sink);
    case DT_ROLE_ASSISTANT:
        DT_TRY(write_piece(sink, t->assistant_before, false));
        DT_TRY(write_content(t, sink, content, true));
        DT_TRY(write_piece(sink, t->assistant_after, true));
        return write_piece(sink, t->assistant_tail, false);
    case DT_ROLE_TOOL:
        DT_TRY(write_piece(sink, t->tool_before, false));
        DT_TRY(write_content(t, sink, content, false));
        return write_piece(sink, t->tool_after, false);
    }
    return DT_FAIL(DT_E_INTERNAL, "role %d", (int)turns[i].role);
}

int dt_chat_write(const struct dt_chat_template *t, const struct dt_turn *turns, int64_t count,
                  bool generation, const struct dt_chat_sink *sink)
{
    DT_TRY(check_turns(t, turns, count));
    DT_TRY(write_piece(sink, t->start, false));
    if (t->system_default && (count == 0 || turns[0].role != DT_ROLE_SYSTEM)) {
        DT_TRY(write_piece(sink, t->system_before, false));
        DT_TRY(write_piece(sink, t->system_default, false));
        DT_TRY(write_piece(sink, t->system_after, false));
    }
    for (int64_t i = 0; i < count; i++)
        DT_TRY(write_turn(t, turns, i, sink));
    return generation ? write_piece(sink, t->opening, false) : DT_OK;
}

/* ---- as text ---- */

struct text_sink {
    struct dt_text *out;
    const char *bos, *eos;
};

static int text_special(void *context, const char *name, size_t bytes, bool trains)
{
    struct text_sink *s = context;
    (void)trains;
    if (bytes == 1)
        return dt_text_append(s->out, *name == 'B' ? s->bos : s->eos,
                              strlen(*name == 'B' ? s->bos : s->eos));
    size_t skip = name[0] == '?';
    return dt_text_append(s->out, name + skip, bytes - skip);
}

static int text_text(void *context, const char *p, size_t n, bool trains)
{
    (void)trains;
    return dt_text_append(((struct text_sink *)context)->out, p, n);
}

int dt_chat_write_text(const struct dt_chat_template *t, const struct dt_turn *turns, int64_t count,
                       bool generation, const char *bos, const char *eos, struct dt_text *out)
{
    struct text_sink context = {out, bos, eos};
    struct dt_chat_sink sink = {&context, text_special, text_text};
    return dt_chat_write(t, turns, count, generation, &sink);
}

/* ---- as ids ---- */

struct id_sink {
    const struct dt_chat *chat;
    struct dt_encoder *encoder;
    struct dt_tokens *out;
    struct dt_text run; /* since the last special token */
    struct {
        size_t end;
        bool trains;
    } * parts; /* of the run */
    int64_t part_count, part_room;
    struct dt_ids scratch;
};

static int add_part(struct id_sink *s, bool trains)
{
    if (s->part_count > 0 && s->parts[s->part_count - 1].trains == trains) {
        s->parts[s->part_count - 1].end = s->run.n;
        return DT_OK;
    }
    if (s->part_count == s->part_room) {
        int64_t room = 2 * s->part_room + 8;
        void *more = realloc(s->parts, (size_t)room * sizeof *s->parts);
        if (!more)
            return DT_FAIL(DT_E_MEMORY, "cannot hold the parts of a conversation");
        s->parts = more;
        s->part_room = room;
    }
    s->parts[s->part_count].end = s->run.n;
    s->parts[s->part_count++].trains = trains;
    return DT_OK;
}

static int flush_run(struct id_sink *s)
{
    struct dt_tokens *out = s->out;
    int64_t start = out->ids.n;
    if (s->run.n == 0)
        return DT_OK;
    DT_TRY(dt_encode(s->encoder, s->run.p, s->run.n, DT_ENCODE_PLAIN, &out->ids));
    for (int64_t k = 0; k < s->part_count; k++) {
        int64_t same = 0;
        if (k + 1 < s->part_count) {
            s->scratch.n = 0;
            DT_TRY(dt_encode(s->encoder, s->run.p, s->parts[k].end, DT_ENCODE_PLAIN, &s->scratch));
            while (same < s->scratch.n && start + same < out->ids.n &&
                   s->scratch.p[same] == out->ids.p[start + same])
                same++;
        }
        int64_t end = k + 1 < s->part_count ? start + same : out->ids.n;
        DT_TRY(dt_tokens_mark_to(out, end, s->parts[k].trains));
    }
    s->run.n = 0;
    s->part_count = 0;
    return DT_OK;
}

static int32_t special_id(const struct dt_chat *c, const char *name, size_t bytes)
{
    if (bytes == 1)
        return *name == 'B' ? c->bos : c->eos;
    size_t skip = name[0] == '?';
    return dt_tokenizer_id(c->tokenizer, name + skip, bytes - skip);
}

static int id_special(void *context, const char *name, size_t bytes, bool trains)
{
    struct id_sink *s = context;
    int32_t id = special_id(s->chat, name, bytes);
    if (id < 0 && name[0] == '?') {
        DT_TRY(dt_text_append(&s->run, name + 1, bytes - 1));
        return add_part(s, trains);
    }
    DT_TRY(flush_run(s));
    DT_TRY(dt_ids_push(&s->out->ids, id));
    return dt_tokens_mark(s->out, trains);
}

static int id_text(void *context, const char *p, size_t n, bool trains)
{
    struct id_sink *s = context;
    DT_TRY(dt_text_append(&s->run, p, n));
    return add_part(s, trains);
}

int dt_chat_encode(const struct dt_chat *c, struct dt_encoder *e, const struct dt_turn *turns,
                   int64_t count, bool generation, struct dt_tokens *out, int64_t *spoken)
{
    struct id_sink context = {.chat = c, .encoder = e, .out = out};
    struct dt_chat_sink sink = {&context, id_special, id_text};
    int rc;
    DT_CHECK(done, rc, dt_chat_write(c->t, turns, count, generation, &sink));
    DT_CHECK(done, rc, flush_run(&context));
    *spoken = 0;
    for (int64_t i = 0; i < count; i++)
        if (turns[i].role == DT_ROLE_ASSISTANT)
            *spoken += (int64_t)turns[i].content.n;
done:
    dt_text_free(&context.run);
    dt_ids_free(&context.scratch);
    free(context.parts);
    return rc;
}

/* ---- opening ---- */

/* Every special token that the template may write must be one for this tokenizer too: as plain text
 * it would be many tokens, and content could imitate it. */
static int check_piece(const struct dt_chat *c, const char *piece)
{
    for (; piece && (piece = strchr(piece, '\1')) != NULL; piece++) {
        size_t n = strcspn(piece + 1, "\2");
        if (special_id(c, piece + 1, n) >= 0 || piece[1] == '?')
            continue;
        if (n == 1)
            return DT_FAIL(
                DT_E_CONFIG,
                "the chat template %s writes the %s token and the tokenizer names none (%s); "
                "set data.chat_template to another one%s",
                c->t->name, piece[1] == 'B' ? "beginning-of-text" : "end-of-text",
                piece[1] == 'B' ? "bos_token" : "eos_token",
                piece[1] == 'B' ? "" : " or set data.end_of_text");
        return DT_FAIL(
            DT_E_CONFIG,
            "the chat template %s writes the special token %.*s and the tokenizer has none "
            "of that name; set data.chat_template to another one (alpaca needs none)",
            c->t->name, (int)n, piece + 1);
    }
    return DT_OK;
}

static int check_specials(const struct dt_chat *c)
{
    const struct dt_chat_template *t = c->t;
    const char *pieces[] = {t->start,           t->system_before,  t->system_after,
                            t->user_before,     t->user_after,     t->assistant_before,
                            t->assistant_after, t->assistant_tail, t->tool_before,
                            t->tool_after,      t->opening};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        DT_TRY(check_piece(c, pieces[i]));
    return DT_OK;
}

static const char *written(const struct dt_chat *c, int32_t id)
{
    size_t bytes;
    const char *text = id < 0 ? NULL : dt_tokenizer_token(c->tokenizer, id, &bytes);
    return text ? text : "";
}

static int find_template(const char *name, const char *model_dir, const struct dt_chat *c,
                         const struct dt_chat_template **out)
{
    *out = NULL;
    if (name && strcmp(name, "auto") != 0) {
        for (int i = 0; i < dt_chat_template_count; i++)
            if (strcmp(dt_chat_templates[i].name, name) == 0)
                *out = &dt_chat_templates[i];
        return *out ? DT_OK
                    : DT_FAIL(DT_E_CONFIG,
                              "data.chat_template '%s' is unknown; there are auto, chatml, "
                              "chatml-qwen2, chatml-qwen2.5, llama2, llama3, mistral, "
                              "mistral-v1, alpaca",
                              name);
    }
    if (!model_dir)
        return DT_OK;
    return dt_chat_recognise(model_dir, written(c, c->bos), written(c, c->eos), out);
}

int dt_chat_open(const char *name, const char *model_dir, const struct dt_tokenizer *t,
                 int32_t end_of_text, struct dt_chat **out)
{
    *out = NULL;
    struct dt_chat c = {.tokenizer = t, .bos = dt_tokenizer_bos(t), .eos = dt_tokenizer_eos(t)};
    if (c.eos < 0)
        c.eos = end_of_text;
    DT_TRY(find_template(name, model_dir, &c, &c.t));
    if (!c.t)
        return DT_OK;
    DT_TRY(check_specials(&c));
    DT_TRY(DT_NEW(out, 1));
    **out = c;
    return DT_OK;
}

void dt_chat_close(struct dt_chat *c)
{
    free(c);
}

const char *dt_chat_name(const struct dt_chat *c)
{
    return c->t->name;
}

int dt_chat_render(const struct dt_chat *c, const struct dt_turn *turns, int64_t count,
                   bool generation, struct dt_text *out)
{
    return dt_chat_write_text(c->t, turns, count, generation, written(c, c->bos),
                              written(c, c->eos), out);
}
