/* What makes a TCP link trusted: the three records of the handshake, and the MAC of each frame. Not
 * for other rooms. No input or output here.
 *
 *     listener -> caller   greeting: prefix, nonce
 *     caller -> listener   answer:   prefix, nonce, proof
 *     listener -> caller   proof
 *
 * prefix: 8 bytes "ductile\n", u32 version, the same in every version, so that each side can say
 * which one the other speaks. From the secret and both nonces come two keys, one a direction. A
 * proof is a MAC under the key of its direction over the records so far, with the number 0; frame n
 * = 1, 2, ... of a direction has one over its header and payload with the number n. So a frame
 * counts only on this connection, in this direction, at this place. */
#ifndef DT_CLUSTER_SEAL_H
#define DT_CLUSTER_SEAL_H

#include "cluster/link.h"

#define CLUSTER__PREFIX 12
#define CLUSTER__NONCE 32
#define CLUSTER__PROOF 32
#define CLUSTER__GREETING (CLUSTER__PREFIX + CLUSTER__NONCE)
#define CLUSTER__ANSWER (CLUSTER__PREFIX + CLUSTER__NONCE + CLUSTER__PROOF)
#define CLUSTER__MAC 16

struct cluster__seal {
    struct dt_secret secret;                                    /* wiped when the keys are there */
    unsigned char records[CLUSTER__GREETING + CLUSTER__ANSWER]; /* greeting, answer */
    unsigned char send_key[32], receive_key[32];
    uint64_t sent, received; /* frames */
};

/* DT_E_DATA: another protocol, or another version of this one. */
int cluster__prefix_check(const unsigned char prefix[CLUSTER__PREFIX]);
/* The listener's first record; the caller copies what came to `records` instead. */
void cluster__greet(struct cluster__seal *s);
/* The caller's record, and its keys. */
void cluster__answer(struct cluster__seal *s);
/* The listener's look at the answer in `records`, its keys, and the proof that it replies with.
 * DT_E_DATA. */
int cluster__accept(struct cluster__seal *s, unsigned char proof[CLUSTER__PROOF]);
/* The caller's look at that proof. DT_E_DATA. */
int cluster__confirm(const struct cluster__seal *s, const unsigned char proof[CLUSTER__PROOF]);

/* The next frame's MAC, written behind its `bytes` bytes. */
void cluster__seal_frame(struct cluster__seal *s, unsigned char *frame, size_t bytes);
/* Is the MAC behind the next frame's `bytes` bytes right? */
bool cluster__check_frame(struct cluster__seal *s, const unsigned char *frame, size_t bytes);

#endif
