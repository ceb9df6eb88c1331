/* Chat templates: how turns become text, and which of it trains.
 *
 * A template is data: the text around each role's content. What it writes itself may be special
 * tokens; content never becomes one. Only what the assistant says trains, up to and including the
 * end of its turn. A template found with a model (Jinja) is run on probe conversations; when it
 * writes exactly what one of ours writes, ours is used, else it is refused by name. */
#ifndef DT_DATA_CHAT_H
#define DT_DATA_CHAT_H

#include "data/tokenizer.h"

struct dt_slice {
    const char *p;
    size_t n;
};

enum dt_chat_role { DT_ROLE_SYSTEM, DT_ROLE_USER, DT_ROLE_ASSISTANT, DT_ROLE_TOOL };

struct dt_turn {
    enum dt_chat_role role;
    struct dt_slice content;
};

struct dt_tokens;
struct dt_chat;

/* `name`: a template's name, or "auto": the one in `model_dir` (may be NULL), recognised. *out is
 * NULL and the result DT_OK when "auto" finds none. DT_E_CONFIG / DT_E_UNSUPPORTED name the key to
 * set. */
int dt_chat_open(const char *name, const char *model_dir, const struct dt_tokenizer *t,
                 int32_t end_of_text, struct dt_chat **out);
void dt_chat_close(struct dt_chat *c);
const char *dt_chat_name(const struct dt_chat *c);

/* Ids and masks of a conversation, appended. With `generation`, the opening of an assistant's turn
 * is added at the end. DT_E_DATA when the template cannot write these turns. *spoken: bytes of the
 * assistant's words. */
int dt_chat_encode(const struct dt_chat *c, struct dt_encoder *e, const struct dt_turn *turns,
                   int64_t count, bool generation, struct dt_tokens *out, int64_t *spoken);
/* The same as text, with bos_token and eos_token written out. */
int dt_chat_render(const struct dt_chat *c, const struct dt_turn *turns, int64_t count,
                   bool generation, struct dt_text *out);

#endif
