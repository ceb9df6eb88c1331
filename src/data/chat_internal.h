/* The built-in templates as data, for chat.c (which writes them) and chat_recognise.c (which
 * compares what a model's own template writes with what they write). */
#ifndef DT_DATA_CHAT_INTERNAL_H
#define DT_DATA_CHAT_INTERNAL_H

#include "data/chat.h"

/* In the texts, \1NAME\2 is the special token NAME; \1B\2 and \1E\2 are bos and eos; a NAME after
 * '?' is ordinary text where the tokenizer has no such token. */
struct dt_chat_template {
    const char *name;  /* several variants may share the name a user gives */
    const char *start; /* once, before everything */
    const char *system_before,
        *system_after;          /* NULL: the system's words go into the first user turn */
    const char *system_default; /* written when there is no system turn; NULL: nothing */
    const char *fold_before,
        *fold_after;          /* around the system's words there; NULL: no system at all */
    const char *user_between; /* before every user turn but the first */
    const char *user_before, *user_after;
    const char *assistant_before, *assistant_after; /* `after` trains: it ends the turn */
    const char *assistant_tail;
    const char *tool_before, *tool_after; /* NULL: no such turns */
    const char *opening;                  /* what asks for an answer */
    bool alternate;                       /* user and assistant take turns, the user first */
    bool trim;                            /* content is stripped of white space */
};
extern const struct dt_chat_template dt_chat_templates[];
extern const int dt_chat_template_count;

/* Where the writer puts what it writes. */
struct dt_chat_sink {
    void *context;
    int (*special)(void *context, const char *name, size_t bytes, bool trains);
    int (*text)(void *context, const char *p, size_t n, bool trains);
};
int dt_chat_write(const struct dt_chat_template *t, const struct dt_turn *turns, int64_t count,
                  bool generation, const struct dt_chat_sink *sink);
/* As text; `bos` and `eos` may be "". */
int dt_chat_write_text(const struct dt_chat_template *t, const struct dt_turn *turns, int64_t count,
                       bool generation, const char *bos, const char *eos, struct dt_text *out);

/* The template of `model_dir`, recognised: *out is NULL when there is none. */
int dt_chat_recognise(const char *model_dir, const char *bos, const char *eos,
                      const struct dt_chat_template **out);
/* The same for the text of a template; DT_E_UNSUPPORTED when it is none of ours. */
int dt_chat_recognise_text(const char *source, size_t bytes, const char *where, const char *bos,
                           const char *eos, const struct dt_chat_template **out);

#endif
