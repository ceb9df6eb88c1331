/* The binary that was built here also trains on a CPU without AVX: a few steps under qemu-user. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

static void test_without_avx(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    print_message("skipped: the sanitizer does not run under qemu\n");
    skip();
#endif
    program_open("qemu");
    program_tiny_run();
    int missing = program_run("command -v qemu-x86_64") != 0;
    if (missing) {
        program_close();
        print_message("skipped: no qemu-x86_64 (Debian: qemu-user)\n");
        skip();
    }
    int code =
        program_run("qemu-x86_64 -cpu qemu64 $D train run.yaml --train.steps=3 --eval.every=0");
    if (code != 0)
        fail_msg("exit code %d:\n%s", code, program_out);
    assert_non_null(strstr(program_out, "kernels: portable"));
    assert_non_null(strstr(program_out, "done: 3 steps"));
    /* The same set on this CPU computes the same. */
    program_expect(
        0, "$D train run.yaml --train.steps=3 --eval.every=0 --kernels=portable --output=here && "
           "cmp out/checkpoints/step-00000003/model.safetensors "
           "here/checkpoints/step-00000003/model.safetensors");
    program_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_avx)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
