/* What coordinator, agents and workers say to each other.
 *
 * Star of stars: a worker talks to its machine's agent over an inherited socket pair, an agent to
 * the coordinator over one connection (TCP, authenticated; a socket pair when both are the same
 * process). Agents pass frames on by rank, and add up the votes of their workers. A frame is a
 * header and a payload of explicitly packed fields (little endian); every decoder checks every
 * length, since a frame may come from anywhere (tests/fuzz/fuzz_message.c). The version of the
 * protocol is in every frame: another one is refused by name. */
#ifndef DT_CLUSTER_MESSAGE_H
#define DT_CLUSTER_MESSAGE_H

#include "train/control.h"

#define DT_MESSAGE_VERSION 1
/* Bytes: u32 payload length, u8 version, u8 type, u16 0, i32 rank, u32 0. */
#define DT_MESSAGE_HEADER 16
#define DT_MESSAGE_MOST ((size_t)16 << 20) /* bytes of a payload */
#define DT_MSG_WORKERS 4096                /* ranks 0 .. 4095 */
#define DT_EVERYBODY (-1)                  /* rank: the agent itself, or all of its workers */

/*    name        sender -> receiver: what */
#define DT_MESSAGES(X)                                                                             \
    X(HELLO)     /* agent -> coordinator: dt_msg_hello */                                          \
    X(SPAWN)     /* coordinator -> agent: dt_msg_spawn */                                          \
    X(STARTED)   /* agent -> coordinator, of a rank: dt_msg_started */                             \
    X(DIED)      /* agent -> coordinator, of a rank: dt_msg_died */                                \
    X(KILL)      /* coordinator -> agent, a rank: no payload; DIED answers */                      \
    X(JOB)       /* coordinator -> workers: text (JSON) */                                         \
    X(ADDRESS)   /* worker -> coordinator: dt_msg_address */                                       \
    X(TABLE)     /* coordinator -> workers: dt_msg_table */                                        \
    X(READY)     /* worker -> coordinator: text (JSON: what it found, for the banner) */           \
    X(GO)        /* coordinator -> workers: no payload */                                          \
    X(VOTE)      /* worker -> coordinator; agents add up: dt_msg_vote */                           \
    X(DECIDE)    /* coordinator -> workers: dt_msg_decide */                                       \
    X(EVALUATED) /* worker -> coordinator, and the total back: dt_msg_evaluated */                 \
    X(SAVE)      /* worker -> coordinator: ready to write step k: dt_msg_save; back: where to */   \
    X(SAVED)     /* worker -> coordinator: dt_msg_saved; back: the outcome (no ranges) */          \
    X(PULSE)  /* worker -> agent -> coordinator, agent -> coordinator, and back: dt_msg_pulse */   \
    X(LOG)    /* agent -> coordinator: text, whole lines that a worker wrote */                    \
    X(BROKEN) /* worker -> coordinator: a transfer failed: dt_msg_failed with the peer */          \
    X(FAILED) /* worker -> coordinator: dt_msg_failed */                                           \
    X(STOP)   /* agent -> coordinator: a signal asked; coordinator -> workers: stop early */       \
    X(END)    /* coordinator -> agents and workers: dt_msg_failed (code 0: done) */                \
    X(BYE)    /* worker or agent: leaves in good order; text (JSON) of results, may be empty */    \
    X(STATUS) /* ctl -> coordinator: no payload; back: text (JSON) */                              \
    X(RESULT) /* worker -> coordinator: text (JSON), of jobs other than training */

enum dt_message_type {
    DT_MSG_NONE,
#define X(name) DT_MSG_##name,
    DT_MESSAGES(X)
#undef X
        DT_MSG_TYPES
};
const char *dt_message_name(int type); /* "VOTE"; "?" for an unknown one */

struct dt_frame {
    int type;
    int32_t rank; /* of the worker it is from or for */
    const unsigned char *payload;
    size_t bytes;
};

#define DT_MSG_HOST 256
#define DT_MSG_WORDS 1024

struct dt_msg_hello {
    char version[64]; /* of the program */
    char job[128];    /* the launcher's job id, "" */
    char host[DT_MSG_HOST];
    char address[64]; /* of the trusted network on this machine; "" local */
    int64_t pid, cores, memory;
    int32_t node;    /* the launcher's number of this agent, -1: none */
    int32_t workers; /* it must have so many (mpirun: 1); 0: by cores */
};
struct dt_msg_spawn {
    int64_t epoch;
    int32_t first, count; /* ranks */
    int32_t threads;      /* per worker */
    double timeout;       /* seconds without word after which an agent kills its workers */
    bool local;           /* all workers of the run are on one machine */
    char output[4096];    /* the run's directory: the agent must see it too */
    char cookie[64];      /* and in it this text, in the file .cookie */
};
struct dt_msg_started {
    int64_t pid;
};
struct dt_msg_died {
    int64_t pid;
    int32_t exit_code; /* -1: by signal */
    int32_t signal;
    char words[DT_MSG_WORDS]; /* "killed by signal 9 (SIGKILL)", "killed: its control group ran out
                                 of memory ..." */
};
struct dt_msg_address {
    int64_t epoch;
    const unsigned char *data; /* points into the frame when decoded */
    size_t bytes;
};
struct dt_msg_table {
    int64_t epoch;
    int32_t size;
    const unsigned char *data[DT_MSG_WORKERS]; /* [size], [bytes[i]] each */
    size_t bytes[DT_MSG_WORKERS];
};
#define DT_MSG_SPACES 64
struct dt_msg_vote {
    struct dt_vote vote; /* vote.space points to the array below when decoded */
    int32_t workers;     /* how many votes are added up in this one */
    struct dt_space_vote space[DT_MSG_SPACES];
};
struct dt_msg_decide {
    struct dt_decision decision; /* decision.space points to the array below when decoded */
    int64_t epoch;
    struct dt_space_decision space[DT_MSG_SPACES];
};
struct dt_msg_evaluated {
    int64_t step;
    struct dt_u128 loss; /* fixed point, see train/control.h */
    bool finite;
    int64_t tokens, sequences, bytes;
    bool complete; /* not interrupted; back: everybody's was */
    bool stop;     /* back: stop after this */
    int32_t workers;
};
struct dt_msg_save {
    int64_t step;
    bool go;              /* back: write; else `words` says why not */
    char directory[4096]; /* back: the temporary directory with the files */
    char words[DT_MSG_WORDS];
};
struct dt_msg_range {
    uint32_t file; /* index in the order in which the coordinator named the files */
    uint64_t offset, length, hash;
};
struct dt_msg_saved {
    int64_t step;
    int32_t code; /* 0 or dt_err; back: the outcome for all */
    bool stop;    /* back */
    char words[DT_MSG_WORDS];
    uint32_t count;
    const unsigned char *ranges; /* packed; dt_msg_range_at reads one */
};
struct dt_msg_pulse {
    int64_t step;      /* last decided step the sender knows; back: the coordinator's */
    int64_t progress;  /* counts instructions: grows while the worker works */
    int64_t resident;  /* bytes */
    int32_t phase;     /* enum dt_phase of train/control.h */
    int32_t waits_for; /* peer of the oldest pending transfer, -1: none */
    double waiting;    /* seconds of it */
};
struct dt_msg_failed {
    int32_t code; /* dt_err */
    int32_t peer; /* -1: none */
    char words[8192];
};

/* ---- Packing: whole frames into buf. Returns bytes, or DT_E_INTERNAL when they do not fit.
 * Unpacking: DT_E_DATA when the payload is not exactly what its type says. ---- */
#define DT_PACK(name, type)                                                                        \
    int64_t dt_pack_##name(unsigned char *buf, size_t size, int32_t rank, const type *m);          \
    int dt_unpack_##name(const struct dt_frame *f, type *m)
DT_PACK(hello, struct dt_msg_hello);
DT_PACK(spawn, struct dt_msg_spawn);
DT_PACK(started, struct dt_msg_started);
DT_PACK(died, struct dt_msg_died);
DT_PACK(address, struct dt_msg_address);
DT_PACK(table, struct dt_msg_table);
DT_PACK(vote, struct dt_msg_vote);
DT_PACK(decide, struct dt_msg_decide);
DT_PACK(evaluated, struct dt_msg_evaluated);
DT_PACK(save, struct dt_msg_save);
DT_PACK(saved, struct dt_msg_saved);
DT_PACK(pulse, struct dt_msg_pulse);
#undef DT_PACK
/* FAILED, BROKEN, END */
int64_t dt_pack_failed(unsigned char *buf, size_t size, int type, int32_t rank,
                       const struct dt_msg_failed *m);
int dt_unpack_failed(const struct dt_frame *f, struct dt_msg_failed *m);
/* JOB, READY, LOG, BYE, STATUS, RESULT: the payload is the text (not terminated). KILL, GO, STOP:
 * empty. Any other type: a payload that came in a frame, to pass it on. */
int64_t dt_pack_text(unsigned char *buf, size_t size, int type, int32_t rank, const char *text,
                     size_t bytes);
/* dt_msg_saved.ranges: packed_bytes for `count` ranges, one written, one read. */
size_t dt_msg_ranges_bytes(uint32_t count);
void dt_msg_range_put(unsigned char *packed, uint32_t i, const struct dt_msg_range *r);
void dt_msg_range_at(const unsigned char *packed, uint32_t i, struct dt_msg_range *r);
/* Votes of one step with equal hashes are added (norms and losses are integers, so order does not
 * show). `into` then owns its spaces, also when it was copied from another message. false, and
 * nothing is changed: they differ in something that must be equal (all but flops and what a space
 * sums up). */
bool dt_msg_vote_merge(struct dt_msg_vote *into, const struct dt_msg_vote *more);

#endif
