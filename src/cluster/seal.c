/* Keys, proofs and MACs of a trusted link (seal.h): keyed BLAKE2b throughout. */
#include "cluster/seal.h"

#include "base/error.h"
#include "cluster/pack.h"

#include <inttypes.h>
#include <sodium.h>
#include <string.h>

static const char magic[8] = {'d', 'u', 'c', 't', 'i', 'l', 'e', '\n'};

static void put_prefix(unsigned char *record)
{
    memcpy(record, magic, sizeof magic);
    cluster__store(record + sizeof magic, DT_MESSAGE_VERSION, 4);
}

int cluster__prefix_check(const unsigned char prefix[CLUSTER__PREFIX])
{
    if (memcmp(prefix, magic, sizeof magic) != 0)
        return DT_FAIL(DT_E_DATA, "this is not Ductile's control protocol: check host and port");
    uint64_t version = cluster__load(prefix + sizeof magic, 4);
    if (version != DT_MESSAGE_VERSION)
        return DT_FAIL(DT_E_DATA,
                       "the other side speaks version %" PRIu64 " of the control protocol, this "
                       "program version %d: start the same ductile everywhere",
                       version, DT_MESSAGE_VERSION);
    return DT_OK;
}

static void mac(const unsigned char key[32], uint64_t number, const unsigned char *data,
                size_t bytes, unsigned char *out, size_t out_bytes)
{
    crypto_generichash_state state;
    unsigned char counter[8];
    cluster__store(counter, number, sizeof counter);
    crypto_generichash_init(&state, key, 32, out_bytes);
    crypto_generichash_update(&state, counter, sizeof counter);
    crypto_generichash_update(&state, data, bytes);
    crypto_generichash_final(&state, out, out_bytes);
}

static void derive(const struct cluster__seal *s, const char *direction, unsigned char key[32])
{
    crypto_generichash_state state;
    crypto_generichash_init(&state, s->secret.bytes, sizeof s->secret.bytes, 32);
    crypto_generichash_update(&state, (const unsigned char *)direction, strlen(direction));
    crypto_generichash_update(&state, s->records + CLUSTER__PREFIX, CLUSTER__NONCE);
    crypto_generichash_update(&state, s->records + CLUSTER__GREETING + CLUSTER__PREFIX,
                              CLUSTER__NONCE);
    crypto_generichash_final(&state, key, 32);
}

static void make_keys(struct cluster__seal *s, bool caller)
{
    derive(s, "ductile: caller to listener", caller ? s->send_key : s->receive_key);
    derive(s, "ductile: listener to caller", caller ? s->receive_key : s->send_key);
    sodium_memzero(&s->secret, sizeof s->secret);
}

/* The caller's proof covers the records before it; the listener's covers that proof as well. */
#define BEFORE_PROOF (CLUSTER__GREETING + CLUSTER__ANSWER - CLUSTER__PROOF)

void cluster__greet(struct cluster__seal *s)
{
    put_prefix(s->records);
    randombytes_buf(s->records + CLUSTER__PREFIX, CLUSTER__NONCE);
}

void cluster__answer(struct cluster__seal *s)
{
    unsigned char *answer = s->records + CLUSTER__GREETING;
    put_prefix(answer);
    randombytes_buf(answer + CLUSTER__PREFIX, CLUSTER__NONCE);
    make_keys(s, true);
    mac(s->send_key, 0, s->records, BEFORE_PROOF, s->records + BEFORE_PROOF, CLUSTER__PROOF);
}

int cluster__accept(struct cluster__seal *s, unsigned char proof[CLUSTER__PROOF])
{
    make_keys(s, false);
    unsigned char expected[CLUSTER__PROOF];
    mac(s->receive_key, 0, s->records, BEFORE_PROOF, expected, sizeof expected);
    if (sodium_memcmp(expected, s->records + BEFORE_PROOF, sizeof expected) != 0)
        return DT_FAIL(DT_E_DATA, "the caller does not know this job's secret: give all processes "
                                  "of the job the same secret");
    mac(s->send_key, 0, s->records, sizeof s->records, proof, CLUSTER__PROOF);
    return DT_OK;
}

int cluster__confirm(const struct cluster__seal *s, const unsigned char proof[CLUSTER__PROOF])
{
    unsigned char expected[CLUSTER__PROOF];
    mac(s->receive_key, 0, s->records, sizeof s->records, expected, sizeof expected);
    if (sodium_memcmp(expected, proof, sizeof expected) != 0)
        return DT_FAIL(DT_E_DATA, "the listener does not know this job's secret: check host and "
                                  "port, and give all processes of the job the same secret");
    return DT_OK;
}

void cluster__seal_frame(struct cluster__seal *s, unsigned char *frame, size_t bytes)
{
    mac(s->send_key, ++s->sent, frame, bytes, frame + bytes, CLUSTER__MAC);
}

bool cluster__check_frame(struct cluster__seal *s, const unsigned char *frame, size_t bytes)
{
    unsigned char expected[CLUSTER__MAC];
    mac(s->receive_key, s->received + 1, frame, bytes, expected, sizeof expected);
    if (sodium_memcmp(expected, frame + bytes, sizeof expected) != 0)
        return false;
    s->received++;
    return true;
}
