/* Leaving over UCX: a worker closes its epoch as soon as its own messages are over, and neither
 * what it sent is lost nor is it taken for a lost worker by those who stay. And messages inside a
 * machine take the fast way. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "unit/comm/processes.h"

enum { EPOCHS = 8 };
static unsigned char data[4 << 20];

/* One message from worker 0 to worker 1; both leave at once. */
static int one_message(size_t bytes)
{
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        struct dt_comm *c;
        struct dt_comm_request r = {0};
        DT_TRY(crew_join(20, &c));
        if (dt_comm_rank(c) == 0)
            dt_comm_send(c, &r, 1, DT_COMM_TEST, 1, data, bytes);
        else
            dt_comm_recv(c, &r, 0, DT_COMM_TEST, 1, data, bytes);
        int rc = dt_comm_wait(c, &r, "the only message");
        dt_comm_close(c);
        crew_say(rc, NULL);
    }
    return DT_OK;
}

/* Worker 0 leaves; the others go on among themselves. */
static int others_stay(void)
{
    struct dt_comm *c;
    DT_TRY(crew_join(20, &c));
    int32_t me = dt_comm_rank(c), staying[] = {1, 2, 3};
    struct dt_group all = {NULL, 4, me}, rest = {staying, 3, me - 1};
    int rc = dt_barrier(c, &all, 1);
    for (int i = 0; me && rc == DT_OK && i < 50; i++) {
        rc = dt_barrier(c, &rest, 2);
        usleep(10000);
    }
    dt_comm_close(c);
    crew_say(rc, NULL);
    return DT_OK;
}

static void leave_at_once(const char *bytes, const char *tls)
{
    static struct crew_address table[CREW_MOST];
    struct crew_report said[CREW_MOST];
    struct crew c;
    int rc = crew_start(&c, 2, bytes, tls);
    for (int64_t epoch = 0; rc == DT_OK && epoch < EPOCHS; epoch++) {
        rc = crew_connect(&c, epoch, table, NULL);
        if (rc == DT_OK)
            rc = crew_hear(&c, said);
    }
    if (rc < 0)
        fail_msg("%s bytes over %s: %s", bytes, tls ? tls : "the default", dt_error_message());
    assert_int_equal(crew_finish(&c), DT_OK);
}

static void test_leave_at_once(void **state)
{
    (void)state;
    static const char *const sizes[] = {"8", "100000", "4194304"};
    for (int i = 0; i < 3; i++) {
        leave_at_once(sizes[i], NULL);
        leave_at_once(sizes[i], "tcp,self");
    }
}

static void test_others_stay(void **state)
{
    (void)state;
    static struct crew_address table[CREW_MOST];
    static const char *const tls[] = {NULL, "tcp,self"};
    struct crew_report said[CREW_MOST];
    struct crew c;
    for (int k = 0; k < 2; k++) {
        int rc = crew_start(&c, 4, "stay", tls[k]);
        if (rc == DT_OK)
            rc = crew_connect(&c, 1, table, NULL);
        if (rc == DT_OK)
            rc = crew_hear(&c, said);
        if (rc < 0)
            fail_msg("%s", dt_error_message());
        assert_int_equal(crew_finish(&c), DT_OK);
    }
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 3 && strcmp(argv[1], "worker") == 0) {
        int rc = strcmp(argv[2], "stay") == 0 ? others_stay()
                                              : one_message((size_t)strtoul(argv[2], NULL, 10));
        return rc < 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leave_at_once),
        cmocka_unit_test(test_others_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
