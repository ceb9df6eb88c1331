/* bench/step --model gpt2-124m --batch 4 --seq 256 --threads 2 --dtype float32|bfloat16 [--steps 5]
 *            [--python PY]
 *
 * Whole training steps (forward, backward, norm, clip, AdamW) on random tokens, interleaved with
 * measurements of the machine's peak (registers only). Prints one JSON line: tokens_per_second of
 * the best step, peak_gflops (best of 5 or more), limit_fraction = tokens/s x FLOPs per token /
 * peak. With --python, a Python that has torch, runs the same step there (bench/step_torch.py) in
 * the same run and gives the ratio. */
#include "base/clock.h"
#include "base/error.h"
#include "train/execute.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static const struct {
    const char *name, *config;
} models[] = {
    {"gpt2-124m",
     "{\"model_type\":\"gpt2\",\"n_embd\":768,\"n_layer\":12,\"n_head\":12,\"n_positions\":1024,"
     "\"vocab_size\":50257,\"resid_pdrop\":0,\"embd_pdrop\":0,\"attn_pdrop\":0}"},
    {"llama-10m",
     "{\"model_type\":\"llama\",\"hidden_size\":320,\"num_hidden_layers\":8,\"num_attention_"
     "heads\":5,"
     "\"num_key_value_heads\":5,\"intermediate_size\":864,\"vocab_size\":4096,"
     "\"max_position_embeddings\":32768,\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true}"},
};

struct setting {
    const char *model, *dtype, *python, *kernels;
    int64_t batch, seq, threads, steps, recompute;
};

static int parse(int argc, char **argv, struct setting *s)
{
    *s = (struct setting){.model = "gpt2-124m",
                          .dtype = "float32",
                          .kernels = "auto",
                          .batch = 4,
                          .seq = 256,
                          .threads = 2,
                          .steps = 5};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        struct {
            const char *name;
            const char **text;
            int64_t *number;
        } known[] = {{"--model", &s->model, NULL},        {"--dtype", &s->dtype, NULL},
                     {"--python", &s->python, NULL},      {"--kernels", &s->kernels, NULL},
                     {"--batch", NULL, &s->batch},        {"--seq", NULL, &s->seq},
                     {"--threads", NULL, &s->threads},    {"--steps", NULL, &s->steps},
                     {"--recompute", NULL, &s->recompute}};
        size_t k = 0;
        while (k < sizeof known / sizeof *known && strcmp(known[k].name, argv[i]) != 0)
            k++;
        if (k == sizeof known / sizeof *known)
            return DT_FAIL(DT_E_USAGE, "unknown option %s", argv[i]);
        if (known[k].text)
            *known[k].text = value;
        else
            *known[k].number = atoll(value);
    }
    return argc % 2 == 1 ? DT_OK : DT_FAIL(DT_E_USAGE, "every option takes a value");
}

struct machine {
    struct dt_arch *arch;
    struct dt_state state;
    struct dt_executor executor;
    struct dt_control control;
    struct dt_global_batch batch;
};

static int open_machine(const struct setting *s, struct machine *m)
{
    const char *config = NULL;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i].name, s->model) == 0)
            config = models[i].config;
    if (!config)
        return DT_FAIL(DT_E_USAGE, "no model '%s' here", s->model);
    DT_TRY(dt_kernels_select(s->kernels));
    dt_ops_set_threads((int)s->threads);
    DT_TRY(dt_arch_parse(config, strlen(config), s->model, &m->arch));
    struct dt_state_options so = {.kind = DT_STATE_TRAIN};
    struct dt_executor_options eo = {.compute =
                                         strcmp(s->dtype, "bfloat16") == 0 ? DT_BF16 : DT_F32,
                                     .train = true,
                                     .recompute = s->recompute != 0,
                                     .microbatch_tokens = s->batch * s->seq,
                                     .positions = s->seq,
                                     .bound = {s->batch, s->batch * s->seq, s->seq}};
    struct dt_optimizer opt = {.lr = 3e-4,
                               .shape = DT_SHAPE_CONSTANT,
                               .steps = 1000,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .clip = 1};
    DT_TRY(dt_state_open(m->arch, &so, &m->state));
    dt_state_init(&m->state, 1);
    DT_TRY(dt_executor_open(&m->state, &eo, &m->executor));
    DT_TRY(dt_control_local(&opt, m->state.part_count, &m->control));
    DT_TRY(dt_executor_batch(&m->executor, &m->batch));
    m->batch.sequences = s->batch;
    for (int64_t i = 0; i < s->batch; i++)
        m->batch.length[i] = s->seq;
    DT_TRY(dt_global_batch_dispatch(&m->batch));
    m->batch.loss_tokens = m->batch.tokens;
    for (int64_t t = 0; t < m->batch.tokens; t++) {
        m->batch.ids[t] = (int32_t)((uint64_t)(t * 2654435761) % (uint64_t)m->arch->V);
        m->batch.targets[t] = (int32_t)((uint64_t)((t + 1) * 2654435761) % (uint64_t)m->arch->V);
    }
    return DT_OK;
}

/* The same step in PyTorch: its tokens per second, 0 when it could not be had. */
static double torch_speed(const struct setting *s, const char *self)
{
    char command[2048], line[256] = "";
    const char *slash = strrchr(self, '/');
    snprintf(command, sizeof command,
             "'%s' '%.*s/../../bench/step_torch.py' %s %" PRId64 " %" PRId64 " %" PRId64 " %s",
             s->python, slash ? (int)(slash - self) : 1, slash ? self : ".", s->model, s->batch,
             s->seq, s->threads, s->dtype);
    FILE *f = popen(command, "r");
    if (!f)
        return 0;
    double speed = fgets(line, sizeof line, f) ? atof(line) : 0;
    pclose(f);
    return speed;
}

static int bench(const struct setting *s, const char *self)
{
    struct machine m = {0};
    struct dt_space_decision space[1];
    struct dt_decision d = {.space = space};
    DT_TRY(open_machine(s, &m));
    double best = 1e30, peak = 0, first_loss = 0;
    for (int64_t step = 1; step <= s->steps + 2; step++) { /* two to warm up */
        double p = dt_ops_peak_gflops(m.executor.model.compute, 0.15);
        double started = dt_clock_seconds();
        DT_TRY(dt_executor_step(&m.executor, &m.batch, step, &m.control, &d));
        double seconds = dt_clock_seconds() - started;
        peak = p > peak ? p : peak;
        if (step == 1)
            first_loss = space[0].loss;
        if (step > 2 && seconds < best)
            best = seconds;
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double tokens = (double)(s->batch * s->seq), flops = 0;
    for (int64_t i = 0; i < s->batch; i++)
        flops += 3 * dt_arch_forward_flops(m.arch, s->seq);
    printf("{\"bench\":\"step\",\"model\":\"%s\",\"batch\":%" PRId64 ",\"seq\":%" PRId64
           ",\"threads\":%" PRId64 ",\"dtype\":\"%s\",\"kernels\":\"%s\",\"tokens_per_second\":%."
           "1f,\"step_seconds\":%.4f,\"gflop_per_token\":%.4f,"
           "\"peak_gflops\":%.1f,\"limit_fraction\":%.4f,\"max_rss_bytes\":%lld,\"first_loss\":%."
           "4f,\"last_loss\":%.4f",
           s->model, s->batch, s->seq, s->threads, s->dtype, dt_k->name, tokens / best, best,
           flops / tokens / 1e9, peak, flops / best / 1e9 / peak, (long long)usage.ru_maxrss * 1024,
           first_loss, space[0].loss);
    if (s->python) {
        double torch = torch_speed(s, self);
        printf(",\"torch_tokens_per_second\":%.1f,\"ratio\":%.3f", torch,
               torch > 0 ? tokens / best / torch : 0.0);
    }
    printf("}\n");
    m.control.close(m.control.self);
    dt_global_batch_free(&m.batch);
    dt_executor_close(&m.executor);
    dt_state_close(&m.state);
    dt_arch_free(m.arch);
    return DT_OK;
}

int main(int argc, char **argv)
{
    struct setting s;
    int rc = parse(argc, argv, &s);
    if (rc >= 0)
        rc = bench(&s, argv[0]);
    if (rc < 0)
        fprintf(stderr, "step: %s\n", dt_error_message());
    return dt_error_exit_code(rc);
}
