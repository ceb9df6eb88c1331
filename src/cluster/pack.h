/* The bytes of a frame. Not for other rooms.
 *
 * Problem: what is written and what is read must never drift apart. Idea: every message is
 * described once, by a *walk* over its fields; a wire either writes what it is shown into a buffer
 * or fills it from a payload. The first fault is remembered and everything after it does nothing,
 * so a walk needs no error handling; when reading, fields then stay as they were (zero).
 *
 * A writing wire never writes through the pointers that it is given: walks may be used on const
 * messages. */
#ifndef DT_CLUSTER_PACK_H
#define DT_CLUSTER_PACK_H

#include "cluster/message.h"

struct cluster__wire {
    unsigned char *to;         /* [size] writing; NULL: reading */
    const unsigned char *from; /* [size] reading */
    size_t size, used;
    const char *field, *fault; /* the first thing that was wrong, where; NULL: nothing */
};

/* A frame into buf; the end gives its bytes, or DT_E_INTERNAL. */
void cluster__frame_begin(struct cluster__wire *w, unsigned char *buf, size_t size, int type,
                          int32_t rank);
int64_t cluster__frame_end(struct cluster__wire *w);
/* A payload; the end is DT_E_DATA after a fault or when bytes are left over. */
void cluster__payload_begin(struct cluster__wire *w, const struct dt_frame *f);
int cluster__payload_end(const struct cluster__wire *w, const struct dt_frame *f);

/* A header that came. DT_E_DATA: another version, an unknown type, a payload of more than
 * DT_MESSAGE_MOST. out->payload is left to the caller. */
int cluster__header_read(const unsigned char header[DT_MESSAGE_HEADER], struct dt_frame *out);

/* Fixed-size integers, least significant byte first. */
void cluster__store(unsigned char *to, uint64_t v, size_t bytes);
uint64_t cluster__load(const unsigned char *from, size_t bytes);

void cluster__fault(struct cluster__wire *w, const char *field, const char *fault);
void cluster__bool(struct cluster__wire *w, const char *field, bool *v);
void cluster__u32(struct cluster__wire *w, const char *field, uint32_t *v);
void cluster__u64(struct cluster__wire *w, const char *field, uint64_t *v);
void cluster__i32(struct cluster__wire *w, const char *field, int32_t *v);
void cluster__i64(struct cluster__wire *w, const char *field, int64_t *v);
void cluster__f32(struct cluster__wire *w, const char *field, float *v);  /* bit by bit */
void cluster__f64(struct cluster__wire *w, const char *field, double *v); /* bit by bit */
/* A terminated text in an array of `size` bytes. */
void cluster__text(struct cluster__wire *w, const char *field, char *v, size_t size);
/* `bytes` bytes without their number; when reading, *v points into the payload. */
void cluster__raw(struct cluster__wire *w, const char *field, const unsigned char **v,
                  size_t bytes);
/* The same with their number in front. */
void cluster__blob(struct cluster__wire *w, const char *field, const unsigned char **v,
                   size_t *bytes);
/* A value that was just walked must lie in lowest .. highest. */
void cluster__range(struct cluster__wire *w, const char *field, int64_t v, int64_t lowest,
                    int64_t highest);

#endif
