/* One control connection: framed, and on TCP authenticated.
 *
 * A link never blocks: its owner polls dt_link_events() and calls dt_link_ready; whole frames come
 * out one by one. On TCP both sides prove that they know the job's secret (challenge and response
 * over fresh nonces) before any frame is looked at; from then on every frame carries a MAC keyed
 * for this connection and direction over (counter, frame), so nothing can be injected, replayed,
 * reordered or reflected. Nothing is encrypted. Socket pairs inside one machine are plain.
 *
 * MACs and keys: libsodium (keyed BLAKE2b, crypto_generichash); docs/protocol.md gives the bytes. A
 * link belongs to one thread at a time. */
#ifndef DT_CLUSTER_LINK_H
#define DT_CLUSTER_LINK_H

#include "cluster/message.h"

#define DT_SECRET_BYTES 32
struct dt_secret {
    unsigned char bytes[DT_SECRET_BYTES];
};
void dt_secret_make(struct dt_secret *out);
/* 64 hexadecimal digits. DT_E_CONFIG. `where` is for messages. */
int dt_secret_parse(const char *text, const char *where, struct dt_secret *out);
void dt_secret_print(const struct dt_secret *s, char out[2 * DT_SECRET_BYTES + 1]);
/* A file of mode 0600 (anything wider is refused, by name). */
int dt_secret_read(const char *path, struct dt_secret *out);

enum dt_link_side { DT_LINK_PLAIN, DT_LINK_CALLER, DT_LINK_LISTENER };

struct dt_link; /* owns fd */

/* handshake: seconds that it may take. The secret is copied (NULL for a plain link). fd is made
 * non-blocking and close-on-exec; it is closed also when this fails. */
int dt_link_new(int fd, enum dt_link_side side, const struct dt_secret *secret, double handshake,
                struct dt_link **out);
void dt_link_free(struct dt_link *l); /* closes */
int dt_link_fd(const struct dt_link *l);
short dt_link_events(const struct dt_link *l); /* for poll(2) */
bool dt_link_trusted(const struct dt_link *l); /* handshake done */
/* Seconds (monotonic) of the last byte that came. */
double dt_link_heard(const struct dt_link *l);
/* Read and write what is possible now; then take every frame with dt_link_next. DT_OK; DT_E_PEER:
 * the other side is gone (end of file, reset), said only when each frame that came before it was
 * taken, so nobody's last words are lost; DT_E_TIMEOUT: no handshake in time (call it with 0 when
 * nothing happens); DT_E_DATA: not our protocol, another version, a wrong secret, a bad MAC or a
 * frame too large; in words with the peer's address. */
int dt_link_ready(struct dt_link *l, short revents);
/* The next whole frame; false: none. Valid until the next call on this link. */
bool dt_link_next(struct dt_link *l, struct dt_frame *out);
/* Queue a packed frame (of dt_pack_*; a failure of that, `bytes` < 0, is passed on) and write what
 * goes at once. Before the handshake is done it waits for that. DT_E_PEER: gone, but what it said
 * before that may still come out of dt_link_ready; DT_E_MEMORY when more than 64 MiB wait. */
int dt_link_send(struct dt_link *l, const unsigned char *frame, int64_t bytes);
/* Write everything queued, waiting at most `seconds`. For the last words before an end. */
int dt_link_flush(struct dt_link *l, double seconds);
/* Wait (at most `seconds`) for one frame: for simple callers (ctl, a starting worker). */
int dt_link_await(struct dt_link *l, double seconds, struct dt_frame *out);
const char *dt_link_peer(const struct dt_link *l); /* "10.0.0.2:4711", "pid 123 (socket pair)" */

/* ---- Listening. Binds to one numeric address only, never to all. port 0: any; *port gets it.
 * DT_E_CONFIG (no such address, all addresses), DT_E_BUSY (the port is taken), DT_E_IO. ---- */
int dt_listen(const char *address, int *port, int *fd);
/* TCP connect with a deadline; host may be a name or an address (a name is looked up first, for as
 * long as the system's resolver takes). DT_E_PEER: unknown name, refused or unreachable, so trying
 * again may help; DT_E_TIMEOUT. */
int dt_dial(const char *host, int port, double seconds, int *fd);

/* Strangers: accepted connections that have not proved anything yet, at most DT_STRANGERS of them
 * for at most DT_STRANGER_SECONDS each. Others wait to be accepted; once all places are taken, who
 * has had one for DT_STRANGER_GRACE seconds gives way to them. Each refusal is logged, at most one
 * line a second. */
#define DT_STRANGERS 32
#define DT_STRANGER_SECONDS 5.0
#define DT_STRANGER_GRACE 0.5
struct dt_door;
/* Owns listen_fd, also when it fails. */
int dt_door_open(int listen_fd, const struct dt_secret *secret, struct dt_door **out);
void dt_door_close(struct dt_door *d); /* closes listen_fd too */
/* Fill poll entries (at most DT_STRANGERS + 1); returns how many. */
struct pollfd;
int dt_door_poll(struct dt_door *d, struct pollfd *fds);
/* After poll: accept, go on with handshakes, drop who is late. A link that has become trusted is
 * handed out (NULL: none, call again until then, with the same entries). */
struct dt_link *dt_door_ready(struct dt_door *d, const struct pollfd *fds, int count);
/* Milliseconds until the door wants to be called again, -1: no need. */
int dt_door_wait(const struct dt_door *d);

#endif
