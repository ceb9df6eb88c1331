/* Inside a step after the second, compute threads allocate nothing and take no page fault,
 * libraries included.
 *
 * malloc and its kin are wrapped in this program (so that calls from libgomp and libc are seen
 * too); the caller of the first allocation inside a step is told. Faults are RUSAGE_THREAD's, of
 * every thread of the team. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/execute.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#if defined(__SANITIZE_ADDRESS__)
#define COUNTS_ALLOCATIONS 0 /* the sanitizer's own allocator stands in between */
#else
#define COUNTS_ALLOCATIONS 1
static volatile int watching;
static volatile long allocations;
static void *volatile first_caller;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);

static void note(void *caller)
{
    if (!watching)
        return;
    if (__atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED) == 0)
        first_caller = caller;
}

void *malloc(size_t n)
{
    note(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    note(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    note(__builtin_return_address(0));
    return __libc_realloc(p, n);
}
#endif

static const char config[] =
    "{\"model_type\":\"llama\",\"hidden_size\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":256,"
    "\"vocab_size\":1000,\"max_position_embeddings\":256,\"rms_norm_eps\":1e-5,"
    "\"tie_word_embeddings\":false}";

static long team_faults(void)
{
    long faults = 0;
#pragma omp parallel reduction(+ : faults)
    {
        struct rusage u;
        getrusage(RUSAGE_THREAD, &u);
        faults += u.ru_minflt + u.ru_majflt;
    }
    return faults;
}

/* Batches of different shape, as a run has them; the largest comes late. */
static void fill(struct dt_global_batch *b, int step)
{
    b->sequences = 3 + step % 4;
    for (int64_t i = 0; i < b->sequences; i++)
        b->length[i] = 40 + (step * 31 + i * 17) % 88;
    assert_int_equal(dt_global_batch_dispatch(b), 0);
    for (int64_t t = 0; t < b->tokens; t++) {
        b->ids[t] = (int32_t)((b->position[t] * 7 + step) % 1000);
        b->targets[t] = (int32_t)((b->position[t] * 7 + 7 + step) % 1000);
    }
    b->loss_tokens = b->tokens;
}

static void run_steps(enum dt_dtype compute, bool recompute)
{
    struct dt_arch *arch;
    struct dt_state state;
    struct dt_executor e;
    struct dt_control control;
    struct dt_global_batch batch;
    struct dt_space_decision space[1];
    struct dt_decision d = {.space = space};
    struct dt_state_options so = {.kind = DT_STATE_TRAIN};
    struct dt_executor_options eo = {.compute = compute,
                                     .train = true,
                                     .recompute = recompute,
                                     .microbatch_tokens = 256,
                                     .positions = 128,
                                     .bound = {8, 1024, 128}};
    struct dt_optimizer o = {
        .lr = 1e-3, .steps = 100, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .clip = 1};
    assert_int_equal(dt_arch_parse(config, sizeof config - 1, "tiny", &arch), 0);
    assert_int_equal(dt_state_open(arch, &so, &state), 0);
    dt_state_init(&state, 1);
    assert_int_equal(dt_executor_open(&state, &eo, &e), 0);
    assert_int_equal(dt_control_local(&o, 1, &control), 0);
    assert_int_equal(dt_executor_batch(&e, &batch), 0);
    for (int step = 1; step <= 8; step++) {
        fill(&batch, step);
        long before = team_faults();
#if COUNTS_ALLOCATIONS
        watching = step > 2;
#endif
        int rc = dt_executor_step(&e, &batch, step, &control, &d);
#if COUNTS_ALLOCATIONS
        watching = 0;
#endif
        assert_int_equal(rc, 0);
        long faults = team_faults() - before;
        if (step > 2 && faults > 0)
            fail_msg("step %d took %ld page faults", step, faults);
    }
#if COUNTS_ALLOCATIONS
    if (allocations > 0) {
        Dl_info info = {0};
        dladdr(first_caller, &info);
        fail_msg("%ld allocations inside steps, the first from %s in %s", allocations,
                 info.dli_sname ? info.dli_sname : "?", info.dli_fname ? info.dli_fname : "?");
    }
#endif
    control.close(control.self);
    dt_global_batch_free(&batch);
    dt_executor_close(&e);
    dt_state_close(&state);
    dt_arch_free(arch);
}

static void test_float32(void **state)
{
    (void)state;
    run_steps(DT_F32, false);
}

static void test_bfloat16(void **state)
{
    (void)state;
    run_steps(DT_BF16, false);
    run_steps(DT_BF16, true);
}

/* The count itself must be able to say no. */
static void test_counting(void **state)
{
    (void)state;
#if COUNTS_ALLOCATIONS
    watching = 1;
    void *volatile p = malloc(100);
    watching = 0;
    free(p);
    assert_int_equal(allocations, 1);
    allocations = 0;
#endif
    long before = team_faults();
    size_t size = 1 << 22;
    volatile char *fresh = malloc(size);
    for (size_t i = 0; i < size; i += 4096)
        fresh[i] = 1;
    assert_true(team_faults() > before);
    free((void *)(uintptr_t)fresh);
}

int main(void)
{
    if (dt_kernels_select("auto") < 0)
        return 1;
    dt_ops_set_threads(2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counting),
        cmocka_unit_test(test_float32),
        cmocka_unit_test(test_bfloat16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
