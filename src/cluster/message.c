/* Each message as a walk over its fields (pack.h): the one place that knows its layout. The order
 * of fields and their widths are the protocol: whoever changes them raises DT_MESSAGE_VERSION. */
#include "cluster/message.h"

#include "base/error.h"
#include "cluster/pack.h"

#include <assert.h>
#include <string.h>

/* These come from other rooms: a field that they gain must be packed here. */
static_assert(sizeof(struct dt_vote) == 96, "pack the new field of dt_vote");
static_assert(sizeof(struct dt_space_vote) == 48, "pack the new field of dt_space_vote");
static_assert(sizeof(struct dt_decision) == 40, "pack the new field of dt_decision");
static_assert(sizeof(struct dt_space_decision) == 64, "pack the new field of dt_space_decision");
static_assert(sizeof(struct dt_adamw) == 32, "pack the new field of dt_adamw");

const char *dt_message_name(int type)
{
    static const char *const name[DT_MSG_TYPES] = {"?",
#define X(name) #name,
                                                   DT_MESSAGES(X)
#undef X
    };
    return type > DT_MSG_NONE && type < DT_MSG_TYPES ? name[type] : "?";
}

#define FIELD(kind, name) cluster__##kind(w, #name, &m->name)
#define TEXT(name) cluster__text(w, #name, m->name, sizeof m->name)
#define RANGE(name, lowest, highest) cluster__range(w, #name, m->name, lowest, highest)

static void walk_code(struct cluster__wire *w, int32_t *code)
{
    cluster__i32(w, "code", code);
    switch (*code) {
#define X(name, value, exit_code, text) case value:
        DT_ERRORS(X)
#undef X
        break;
    default:
        cluster__fault(w, "code", "it is no known error");
    }
}

static void walk_u128(struct cluster__wire *w, const char *field, struct dt_u128 *v)
{
    cluster__u64(w, field, &v->lo);
    cluster__u64(w, field, &v->hi);
}

static void walk_hello(struct cluster__wire *w, struct dt_msg_hello *m)
{
    TEXT(version);
    TEXT(job);
    TEXT(host);
    TEXT(address);
    FIELD(i64, pid);
    FIELD(i64, cores);
    FIELD(i64, memory);
    FIELD(i32, node);
    FIELD(i32, workers);
    RANGE(workers, 0, DT_MSG_WORKERS);
}

static void walk_spawn(struct cluster__wire *w, struct dt_msg_spawn *m)
{
    FIELD(i64, epoch);
    FIELD(i32, first);
    FIELD(i32, count);
    RANGE(first, 0, DT_MSG_WORKERS);
    RANGE(count, 0, DT_MSG_WORKERS - (int64_t)m->first);
    FIELD(i32, threads);
    FIELD(f64, timeout);
    FIELD(bool, local);
    TEXT(output);
    TEXT(cookie);
}

static void walk_started(struct cluster__wire *w, struct dt_msg_started *m)
{
    FIELD(i64, pid);
}

static void walk_died(struct cluster__wire *w, struct dt_msg_died *m)
{
    FIELD(i64, pid);
    FIELD(i32, exit_code);
    FIELD(i32, signal);
    TEXT(words);
}

static void walk_address(struct cluster__wire *w, struct dt_msg_address *m)
{
    FIELD(i64, epoch);
    cluster__blob(w, "address", &m->data, &m->bytes);
}

static void walk_table(struct cluster__wire *w, struct dt_msg_table *m)
{
    FIELD(i64, epoch);
    FIELD(i32, size);
    RANGE(size, 1, DT_MSG_WORKERS);
    for (int32_t i = 0; i < m->size && !w->fault; i++)
        cluster__blob(w, "address", &m->data[i], &m->bytes[i]);
}

static void walk_space_vote(struct cluster__wire *w, struct dt_space_vote *m)
{
    walk_u128(w, "norm", &m->norm);
    FIELD(i32, scale_log2);
    FIELD(bool, finite);
    FIELD(bool, overflow);
    walk_u128(w, "loss", &m->loss);
    FIELD(i64, loss_tokens);
    RANGE(loss_tokens, 0, INT64_MAX);
}

static void walk_vote(struct cluster__wire *w, struct dt_msg_vote *m)
{
    FIELD(i64, vote.epoch);
    FIELD(i64, vote.step);
    FIELD(i64, vote.attempt);
    FIELD(u64, vote.plan);
    FIELD(u64, vote.dispatch);
    FIELD(u64, vote.kernels);
    FIELD(i64, vote.data_epoch);
    FIELD(i64, vote.sequences);
    FIELD(i64, vote.tokens);
    FIELD(f64, vote.flops);
    FIELD(i32, workers);
    RANGE(workers, 1, DT_MSG_WORKERS);
    FIELD(i64, vote.spaces);
    RANGE(vote.spaces, 0, DT_MSG_SPACES);
    if (!w->to)
        m->vote.space = m->space;
    struct dt_space_vote *space = w->to ? (struct dt_space_vote *)m->vote.space : m->space;
    for (int64_t i = 0; i < m->vote.spaces && !w->fault; i++)
        walk_space_vote(w, &space[i]);
}

static void walk_adamw(struct cluster__wire *w, struct dt_adamw *m)
{
    FIELD(f32, lr);
    FIELD(f32, beta1);
    FIELD(f32, beta2);
    FIELD(f32, eps);
    FIELD(f32, weight_decay);
    FIELD(f32, bias1);
    FIELD(f32, bias2);
    FIELD(f32, grad_scale);
}

static void walk_space_decision(struct cluster__wire *w, struct dt_space_decision *m)
{
    int32_t action = (int32_t)m->action;
    cluster__i32(w, "action", &action);
    cluster__range(w, "action", action, DT_APPLY, DT_REDO);
    if (!w->to && !w->fault)
        m->action = (enum dt_action)action;
    FIELD(f64, norm);
    FIELD(f64, loss);
    FIELD(i64, denominator);
    walk_adamw(w, &m->adamw);
}

static void walk_decide(struct cluster__wire *w, struct dt_msg_decide *m)
{
    FIELD(i64, epoch);
    FIELD(i64, decision.step);
    FIELD(i64, decision.attempt);
    FIELD(bool, decision.stop);
    FIELD(i64, decision.spaces);
    RANGE(decision.spaces, 0, DT_MSG_SPACES);
    if (!w->to)
        m->decision.space = m->space;
    for (int64_t i = 0; i < m->decision.spaces && !w->fault; i++)
        walk_space_decision(w, &m->decision.space[i]);
}

static void walk_evaluated(struct cluster__wire *w, struct dt_msg_evaluated *m)
{
    FIELD(i64, step);
    walk_u128(w, "loss", &m->loss);
    FIELD(bool, finite);
    FIELD(i64, tokens);
    FIELD(i64, sequences);
    FIELD(i64, bytes);
    FIELD(bool, complete);
    FIELD(bool, stop);
    FIELD(i32, workers);
    RANGE(workers, 0, DT_MSG_WORKERS);
}

static void walk_save(struct cluster__wire *w, struct dt_msg_save *m)
{
    FIELD(i64, step);
    FIELD(bool, go);
    TEXT(directory);
    TEXT(words);
}

static void walk_saved(struct cluster__wire *w, struct dt_msg_saved *m)
{
    FIELD(i64, step);
    walk_code(w, &m->code);
    FIELD(bool, stop);
    TEXT(words);
    FIELD(u32, count);
    cluster__raw(w, "ranges", &m->ranges, dt_msg_ranges_bytes(m->count));
}

static void walk_pulse(struct cluster__wire *w, struct dt_msg_pulse *m)
{
    FIELD(i64, step);
    FIELD(i64, progress);
    FIELD(i64, resident);
    FIELD(i32, phase);
    RANGE(phase, 0, DT_PHASE_END);
    FIELD(i32, waits_for);
    RANGE(waits_for, -1, DT_MSG_WORKERS - 1);
    FIELD(f64, waiting);
}

static void walk_failed(struct cluster__wire *w, struct dt_msg_failed *m)
{
    walk_code(w, &m->code);
    FIELD(i32, peer);
    RANGE(peer, -1, DT_MSG_WORKERS - 1);
    TEXT(words);
}

/* A writing wire leaves the message alone, hence the cast in the packer. */
#define MESSAGE(name, TYPE)                                                                        \
    int64_t dt_pack_##name(unsigned char *buf, size_t size, int32_t rank,                          \
                           const struct dt_msg_##name *m)                                          \
    {                                                                                              \
        struct cluster__wire w;                                                                    \
        cluster__frame_begin(&w, buf, size, TYPE, rank);                                           \
        walk_##name(&w, (struct dt_msg_##name *)m);                                                \
        return cluster__frame_end(&w);                                                             \
    }                                                                                              \
    int dt_unpack_##name(const struct dt_frame *f, struct dt_msg_##name *m)                        \
    {                                                                                              \
        DT_TRY(expect(f, f->type == (TYPE), #TYPE));                                               \
        struct cluster__wire w;                                                                    \
        cluster__payload_begin(&w, f);                                                             \
        memset(m, 0, sizeof *m);                                                                   \
        walk_##name(&w, m);                                                                        \
        return cluster__payload_end(&w, f);                                                        \
    }

static int expect(const struct dt_frame *f, bool as_expected, const char *type)
{
    if (as_expected)
        return DT_OK;
    return DT_FAIL(DT_E_DATA, "expected a frame of type %s, found %s", type + strlen("DT_MSG_"),
                   dt_message_name(f->type));
}

MESSAGE(hello, DT_MSG_HELLO)
MESSAGE(spawn, DT_MSG_SPAWN)
MESSAGE(started, DT_MSG_STARTED)
MESSAGE(died, DT_MSG_DIED)
MESSAGE(address, DT_MSG_ADDRESS)
MESSAGE(table, DT_MSG_TABLE)
MESSAGE(vote, DT_MSG_VOTE)
MESSAGE(decide, DT_MSG_DECIDE)
MESSAGE(evaluated, DT_MSG_EVALUATED)
MESSAGE(save, DT_MSG_SAVE)
MESSAGE(saved, DT_MSG_SAVED)
MESSAGE(pulse, DT_MSG_PULSE)

int64_t dt_pack_failed(unsigned char *buf, size_t size, int type, int32_t rank,
                       const struct dt_msg_failed *m)
{
    struct cluster__wire w;
    cluster__frame_begin(&w, buf, size, type, rank);
    if (type != DT_MSG_FAILED && type != DT_MSG_BROKEN && type != DT_MSG_END)
        cluster__fault(&w, "type", "it carries something else");
    walk_failed(&w, (struct dt_msg_failed *)m);
    return cluster__frame_end(&w);
}

int dt_unpack_failed(const struct dt_frame *f, struct dt_msg_failed *m)
{
    bool fits = f->type == DT_MSG_FAILED || f->type == DT_MSG_BROKEN || f->type == DT_MSG_END;
    DT_TRY(expect(f, fits, "DT_MSG_FAILED, BROKEN or END"));
    struct cluster__wire w;
    cluster__payload_begin(&w, f);
    memset(m, 0, sizeof *m);
    walk_failed(&w, m);
    return cluster__payload_end(&w, f);
}

int64_t dt_pack_text(unsigned char *buf, size_t size, int type, int32_t rank, const char *text,
                     size_t bytes)
{
    struct cluster__wire w;
    cluster__frame_begin(&w, buf, size, type, rank);
    if (type <= DT_MSG_NONE || type >= DT_MSG_TYPES)
        cluster__fault(&w, "type", "there is no such type");
    if (bytes > 0 && (type == DT_MSG_KILL || type == DT_MSG_GO || type == DT_MSG_STOP))
        cluster__fault(&w, "payload", "there is none in this type");
    const unsigned char *payload = (const unsigned char *)text;
    cluster__raw(&w, "text", &payload, bytes);
    return cluster__frame_end(&w);
}

#define RANGE_BYTES 28 /* u32 file, u64 offset, length, hash */

size_t dt_msg_ranges_bytes(uint32_t count)
{
    return (size_t)count * RANGE_BYTES;
}

static void walk_range(struct cluster__wire *w, struct dt_msg_range *m)
{
    FIELD(u32, file);
    FIELD(u64, offset);
    FIELD(u64, length);
    FIELD(u64, hash);
}

void dt_msg_range_put(unsigned char *packed, uint32_t i, const struct dt_msg_range *r)
{
    struct cluster__wire w = {.to = packed + dt_msg_ranges_bytes(i), .size = RANGE_BYTES};
    walk_range(&w, (struct dt_msg_range *)r);
}

void dt_msg_range_at(const unsigned char *packed, uint32_t i, struct dt_msg_range *r)
{
    struct cluster__wire w = {.from = packed + dt_msg_ranges_bytes(i), .size = RANGE_BYTES};
    walk_range(&w, r);
}

static bool same_step(const struct dt_vote *a, const struct dt_vote *b)
{
    return a->epoch == b->epoch && a->step == b->step && a->attempt == b->attempt &&
           a->plan == b->plan && a->dispatch == b->dispatch && a->kernels == b->kernels &&
           a->data_epoch == b->data_epoch && a->sequences == b->sequences &&
           a->tokens == b->tokens && a->spaces == b->spaces;
}

bool dt_msg_vote_merge(struct dt_msg_vote *into, const struct dt_msg_vote *more)
{
    const struct dt_vote *a = &into->vote, *b = &more->vote;
    int32_t workers;
    if (!same_step(a, b) || a->spaces < 0 || a->spaces > DT_MSG_SPACES ||
        __builtin_add_overflow(into->workers, more->workers, &workers))
        return false;
    int64_t tokens[DT_MSG_SPACES];
    for (int64_t i = 0; i < a->spaces; i++)
        if (a->space[i].scale_log2 != b->space[i].scale_log2 ||
            __builtin_add_overflow(a->space[i].loss_tokens, b->space[i].loss_tokens, &tokens[i]))
            return false;
    for (int64_t i = 0; i < a->spaces; i++) {
        struct dt_space_vote sum = a->space[i];
        const struct dt_space_vote *s = &b->space[i];
        dt_u128_add(&sum.norm, &s->norm);
        dt_u128_add(&sum.loss, &s->loss);
        sum.finite = sum.finite && s->finite;
        sum.overflow = sum.overflow || s->overflow;
        sum.loss_tokens = tokens[i];
        into->space[i] = sum;
    }
    into->vote.space = into->space;
    into->vote.flops += b->flops;
    into->workers = workers;
    return true;
}
