/* The table of RUN.yaml: every key of a run with its default, range and words, and the names of
 * other programs that people will try. docs/config.md is generated from here. */
#include "train/run_config.h"

#define AT(member) .offset = offsetof(struct dt_run_config, member)
#define MANY DT_CONFIG_MANY

static const char *const inits[] = {"pretrained", "random", NULL};
static const char *const bad_rows[] = {"fail", "skip", NULL};
static const char *const dtypes[] = {"bfloat16|bf16", "float32|fp32", NULL};
static const char *const recomputes[] = {"none", "block", NULL};
static const char *const schedules[] = {"constant", "linear", "cosine", "wsd|WSD", NULL};
static const char *const formats[] = {"auto",   "text",     "input_ids", "prompt",
                                      "alpaca", "sharegpt", "messages",  NULL};
static const char *const templates[] = {"auto",    "chatml", "llama2", "llama3",
                                        "mistral", "alpaca", NULL};
static const char *const kernels[] = {"auto",     "avx512bf16", "avx512", "avx2",
                                      "portable", "reference",  NULL};
static const char *const reductions[] = {"float", "exact", NULL};

static const struct dt_config_key keys[] = {
    {"model", "model_name_or_path base_model model_path", DT_CONFIG_PATH, AT(model),
     .required = true, .change = DT_CONFIG_FIXED,
     .doc = "Hugging Face directory or checkpoint; with `init: random` only its config.json and "
            "tokenizer are used"},
    {"init", NULL, DT_CONFIG_ENUM, AT(init), "pretrained", .names = inits,
     .change = DT_CONFIG_FIXED,
     .doc = "where the first weights come from: the model's files, or normal draws of "
            "`initializer_range`"},
    {"output", "output_dir", DT_CONFIG_PATH, AT(output), .required = true,
     .doc = "the run's directory: logs, metrics.jsonl, config.yaml, checkpoints/, cache/"},
    {"seed", NULL, DT_CONFIG_INT, AT(seed), "1", .max = MANY, .change = DT_CONFIG_FIXED,
     .doc = "every random choice is a function of it: sample order, initial weights"},
    {"workers", "nproc", DT_CONFIG_INT, AT(workers), "1", .min = 1, .max = 4096,
     .doc =
         "processes in all, on all machines; agents divide them by cores. Under mpirun the number "
         "of its ranks"},
    {"rates", NULL, DT_CONFIG_STRINGS, AT(rates), "[]",
     .doc =
         "time that each worker needs for a token, beside a healthy one's (1; 2 is half as fast): "
         "a list of `workers` numbers; tokens are dealt out accordingly"},
    {"threads", "num_threads", DT_CONFIG_INT, AT(threads), "0", .max = 4096,
     .doc = "threads of a worker; 0 is every core of its machine, divided by the workers there"},
    {"reduction", NULL, DT_CONFIG_ENUM, AT(reduction), "float", .names = reductions,
     .change = DT_CONFIG_FIXED,
     .doc =
         "how gradients are summed: float, in one fixed order for a plan; exact, as 64-bit "
         "integers, so that the bits do not depend on the number of workers or on how a batch is "
         "cut (4 bytes a parameter more, twice the traffic)"},
    {"kernels", NULL, DT_CONFIG_STRING, AT(kernels), "auto", .names = kernels,
     .doc = "kernel set; auto is the fastest that this CPU runs"},

    {"cluster.network", NULL, DT_CONFIG_STRING, AT(cluster.network),
     .default_words = "none: all workers are on this machine",
     .doc =
         "the trusted network between machines, as ADDRESS/BITS: agents and data use addresses in "
         "it and no other"},
    {"cluster.agents", "nnodes", DT_CONFIG_INT, AT(cluster.agents), "1", .min = 1, .max = 4096,
     .doc =
         "machines that take part; each runs one agent (`ductile agent`, or the launcher's task)"},
    {"cluster.port", "master_port", DT_CONFIG_INT, AT(cluster.port), "0", .max = 65535,
     .doc = "port of the coordinator; 0 is any free one"},
    {"cluster.secret", NULL, DT_CONFIG_PATH, AT(cluster.secret),
     .default_words = "a fresh one in OUTPUT/.control",
     .doc = "file (mode 0600) with the job's secret, 64 hexadecimal digits; DUCTILE_SECRET in the "
            "environment goes before it"},
    {"cluster.timeout", "init_timeout_seconds ddp_timeout", DT_CONFIG_FLOAT, AT(cluster.timeout),
     "10", .min = 0.5, .max = 3600, .unit = "seconds",
     .doc =
         "a worker or machine that is silent for so long is taken for lost (one that dies is seen "
         "at once)"},
    {"cluster.start_timeout", NULL, DT_CONFIG_FLOAT, AT(cluster.start_timeout), "300", .min = 1,
     .max = 86400, .unit = "seconds",
     .doc = "how long to wait for all machines and workers to be there"},

    {"data.train", "train_data train_file data_path", DT_CONFIG_PATHS, AT(data.train),
     .required = true, .change = DT_CONFIG_FIXED,
     .doc = "files to train on: text, JSONL, either with .gz, or the .bin of a corpus"},
    {"data.eval", "eval_data eval_file validation_file", DT_CONFIG_PATHS, AT(data.eval), "[]",
     .doc = "files to evaluate on"},
    {"data.eval_fraction", NULL, DT_CONFIG_FLOAT, AT(data.eval_fraction), "0", .max = 0.5,
     .change = DT_CONFIG_FIXED,
     .doc = "share of the documents, chosen by hash, that is held out when `data.eval` is empty"},
    {"data.max_length",
     "sequence_len cutoff_len seq_len seq_length max_seq_length max_seq_len block_size max_length",
     DT_CONFIG_INT, AT(data.max_length), "1024", .min = 2, .max = 1 << 24,
     .change = DT_CONFIG_FIXED, .unit = "tokens",
     .doc = "longest sequence; longer documents are cut into pieces, longer fine-tuning rows "
            "truncated with a count"},
    {"data.shuffle", "shuffle", DT_CONFIG_BOOL, AT(data.shuffle), "true", .change = DT_CONFIG_FIXED,
     .doc = "new order every epoch, a function of the seed; false is file order"},
    {"data.on_bad_row", NULL, DT_CONFIG_ENUM, AT(data.on_bad_row), "fail", .names = bad_rows,
     .change = DT_CONFIG_FIXED,
     .doc = "a row that cannot be used stops the run, or is skipped and counted"},
    {"data.end_of_text", "eos_token", DT_CONFIG_STRING, AT(data.end_of_text), "auto",
     .change = DT_CONFIG_FIXED,
     .doc = "token that closes each text document: auto is the model's end-of-text token, none "
            "adds nothing"},
    {"data.format", "format", DT_CONFIG_STRING, AT(data.format), "auto", .names = formats,
     .change = DT_CONFIG_FIXED,
     .doc = "kind of the JSONL rows; auto looks at the first rows and says what it found"},
    {"data.chat_template", "template", DT_CONFIG_STRING, AT(data.chat_template), "auto",
     .names = templates, .change = DT_CONFIG_FIXED,
     .doc =
         "how chat rows become text; auto is the tokenizer's own template when it is a known one"},
    {"data.cache", "dataset_prepared_path", DT_CONFIG_PATH, AT(data.cache),
     .default_words = "OUTPUT/cache", .doc = "directory for tokenized text"},

    {"batch.tokens", NULL, DT_CONFIG_INT, AT(batch.tokens), .min = 1, .max = 1LL << 36,
     .change = DT_CONFIG_FIXED, .unit = "tokens",
     .default_words = "16384 without `batch.sequences`",
     .doc = "samples of one step are taken in order while their tokens fit"},
    {"batch.sequences", "global_batch_size", DT_CONFIG_INT, AT(batch.sequences), .min = 1,
     .max = 1 << 24, .change = DT_CONFIG_FIXED, .unit = "sequences", .default_words = "not used",
     .doc = "samples of one step, instead of `batch.tokens`"},

    {"microbatch.tokens", NULL, DT_CONFIG_INT, AT(microbatch.tokens), .min = 2, .max = 1 << 24,
     .unit = "tokens", .default_words = "4096, or `data.max_length` if that is more",
     .doc =
         "the most tokens a worker holds at once; memory grows with it, results do not depend on it"
         " beyond rounding"},

    {"train.steps", "max_steps train_iters num_steps steps", DT_CONFIG_INT, AT(train.steps),
     .min = 1, .max = MANY, .change = DT_CONFIG_GROWS, .unit = "steps",
     .default_words = "by `train.epochs`",
     .doc = "updates in all; exactly one of `train.steps` and `train.epochs` is given"},
    {"train.epochs", "num_epochs num_train_epochs epochs", DT_CONFIG_INT, AT(train.epochs),
     .min = 1, .max = 1e9, .change = DT_CONFIG_GROWS, .unit = "epochs",
     .default_words = "by `train.steps`", .doc = "passes over the training data"},
    {"train.dtype", "torch_dtype dtype", DT_CONFIG_ENUM, AT(train.dtype), "bfloat16",
     .names = dtypes, .change = DT_CONFIG_FIXED,
     .doc = "what enters a matrix product; weights, gradients, moments and sums are float32 in "
            "either case"},
    {"train.freeze", "freeze", DT_CONFIG_PATTERNS, AT(train.freeze), "[]",
     .change = DT_CONFIG_FIXED,
     .doc =
         "shell patterns over tensor names (`model.embed_tokens.*`); what matches is not trained"},
    {"train.recompute", NULL, DT_CONFIG_ENUM, AT(train.recompute), "none", .names = recomputes,
     .doc = "block keeps only the input of each block and computes the rest again in the backward "
            "pass:"
            " less memory, more time, same bits"},

    {"optimizer.lr", "learning_rate lr", DT_CONFIG_FLOAT, AT(optimizer.lr), "3.0e-4", .max = 10,
     .change = DT_CONFIG_FIXED, .doc = "learning rate after warm-up"},
    {"optimizer.schedule", "lr_scheduler lr_scheduler_type lr_decay_style schedule", DT_CONFIG_ENUM,
     AT(optimizer.schedule), "cosine", .names = schedules, .change = DT_CONFIG_FIXED,
     .doc = "what the learning rate does after warm-up; wsd stays and decays linearly over the "
            "last `optimizer.decay`"},
    {"optimizer.warmup", "warmup_steps lr_warmup_iters warmup", DT_CONFIG_AMOUNT,
     AT(optimizer.warmup), "0", .change = DT_CONFIG_FIXED, .unit = "steps",
     .doc = "the k-th warm-up step has lr·k/warmup"},
    {"optimizer.decay", NULL, DT_CONFIG_AMOUNT, AT(optimizer.decay), "10%",
     .change = DT_CONFIG_FIXED, .unit = "steps", .doc = "the final decay of schedule wsd"},
    {"optimizer.min_lr_ratio", NULL, DT_CONFIG_FLOAT, AT(optimizer.min_lr_ratio), "0.1", .max = 1,
     .change = DT_CONFIG_FIXED, .doc = "the schedule ends at this share of lr"},
    {"optimizer.betas", NULL, DT_CONFIG_FLOATS, AT(optimizer.betas), "[0.9, 0.95]", .max = 1,
     .below_max = true, .count = 2, .change = DT_CONFIG_FIXED,
     .doc = "decay of AdamW's first and second moment"},
    {"optimizer.eps", "adam_epsilon adam_eps", DT_CONFIG_FLOAT, AT(optimizer.eps), "1.0e-8",
     .max = 1, .above_min = true, .change = DT_CONFIG_FIXED, .doc = "AdamW's epsilon"},
    {"optimizer.weight_decay", "weight_decay", DT_CONFIG_FLOAT, AT(optimizer.weight_decay), "0.1",
     .max = 100, .change = DT_CONFIG_FIXED,
     .doc = "decoupled decay of matrices; one-dimensional tensors are not decayed"},
    {"optimizer.clip", "max_grad_norm max_norm clip_grad grad_clip", DT_CONFIG_FLOAT,
     AT(optimizer.clip), "1.0", .max = MANY, .change = DT_CONFIG_FIXED,
     .doc = "largest norm of the whole gradient, longer ones are scaled down; 0 is no clipping"},

    {"eval.every", "eval_steps eval_interval", DT_CONFIG_INT, AT(eval.every), "0", .max = MANY,
     .unit = "steps", .doc = "distance of evaluations; 0 is only at the end"},
    {"eval.sequences", "eval.max max_eval_samples", DT_CONFIG_INT, AT(eval.sequences), "0",
     .max = MANY, .unit = "sequences",
     .doc = "the most sequences of an evaluation, in file order; 0 is all"},

    {"checkpoint.every", "save_steps save_interval checkpoint_every", DT_CONFIG_INT,
     AT(checkpoint.every), "500", .max = MANY, .unit = "steps",
     .doc = "distance of checkpoints; 0 is only at the end"},
    {"checkpoint.keep", "save_total_limit keep_latest_k", DT_CONFIG_INT, AT(checkpoint.keep), "3",
     .max = MANY, .unit = "checkpoints", .doc = "newest checkpoints that are kept; 0 is all"},
    {"checkpoint.keep_every", NULL, DT_CONFIG_INT, AT(checkpoint.keep_every), "0", .max = MANY,
     .unit = "steps", .doc = "checkpoints of steps divisible by this are kept for good; 0 is none"},

    {"log.every", "logging_steps log_interval log_freq", DT_CONFIG_INT, AT(log.every), "1",
     .min = 1, .max = MANY, .unit = "steps",
     .doc = "distance of log lines; metrics.jsonl has every step"},

    {"memory.limit", "memory_limit", DT_CONFIG_INT, AT(memory.limit), "0", .max = MANY,
     .unit = "MiB",
     .doc = "memory the run may use, checked before the first step; 0 is what machine and control "
            "group allow"},
};

static const struct dt_config_section sections[] = {
    {"cluster", "Several machines, and what is taken for lost"},
    {"data", "What is trained and evaluated on"},
    {"batch", "The global batch of one step: exactly one of the two keys"},
    {"microbatch", "How much of a batch is computed at once"},
    {"train", "How long and in which precision"},
    {"optimizer", "AdamW and its learning rate"},
    {"eval", "Evaluation during training"},
    {"checkpoint", "Saving and retention"},
    {"log", "Log lines"},
    {"memory", "Memory"},
    {0},
};

static const struct dt_config_word words[] = {
    /* Later versions. */
    {"plan", true, "plans are"},
    {"plans", true, "plans are"},
    {"parallel", true, "parallelism is"},
    {"parallelism", true, "parallelism is"},
    {"data_parallel_replicate_degree", true, "parallelism is"},
    {"data_parallel_shard_degree", true, "parallelism is"},
    {"tensor_parallel_degree", true, "tensor parallelism is"},
    {"tensor_parallel_size", true, "tensor parallelism is"},
    {"tensor_model_parallel_size", true, "tensor parallelism is"},
    {"pipeline_parallel_degree", true, "pipeline parallelism is"},
    {"pipeline_model_parallel_size", true, "pipeline parallelism is"},
    {"sequence_parallel", true, "sequence parallelism is"},
    {"context_parallel", true, "context parallelism is"},
    {"context_parallel_degree", true, "context parallelism is"},
    {"context_parallel_size", true, "context parallelism is"},
    {"dp_shard_size", true, "parallelism is"},
    {"dp_replicate_size", true, "parallelism is"},
    {"deepspeed", true, "DeepSpeed configuration is"},
    {"fsdp", true, "FSDP configuration is"},
    {"fsdp_config", true, "FSDP configuration is"},
    {"adapter", true, "adapters (LoRA) are"},
    {"adapters", true, "adapters (LoRA) are"},
    {"lora", true, "adapters (LoRA) are"},
    {"peft", true, "adapters (LoRA) are"},
    {"finetuning_type", true, "adapters (LoRA) are"},
    {"lora_r", true, "adapters (LoRA) are"},
    {"lora_rank", true, "adapters (LoRA) are"},
    {"lora_alpha", true, "adapters (LoRA) are"},
    {"lora_dropout", true, "adapters (LoRA) are"},
    {"lora_target", true, "adapters (LoRA) are"},
    {"lora_target_modules", true, "adapters (LoRA) are"},
    {"lora_model_dir", true, "adapters (LoRA) are"},
    {"tenants", true, "joint training of several adapters is"},
    {"moe", true, "mixture of experts is"},
    {"experts", true, "mixture of experts is"},
    {"num_experts", true, "mixture of experts is"},
    {"expert_parallel_degree", true, "mixture of experts is"},
    {"virtual_stages", true, "interleaved virtual stages are"},
    {"quantization", true, "quantized training is"},
    {"load_in_4bit", true, "quantized training is"},
    {"load_in_8bit", true, "quantized training is"},
    {"fp8", true, "fp8 is"},
    {"replicas", true, "replication of optimizer state is"},
    {"train.dtype=fp8", true, "is"},
    {"train.dtype=float8", true, "is"},
    {"train.dtype=fp16", false, "there is no float16 training; use bfloat16 or float32"},
    {"train.dtype=float16", false, "there is no float16 training; use bfloat16 or float32"},
    /* Other programs' keys, with another unit or meaning. */
    {"micro_batch_size", false,
     "it counts sequences; write microbatch.tokens, the most tokens held at once"},
    {"per_device_train_batch_size", false,
     "it counts sequences; write microbatch.tokens, the most tokens held at once"},
    {"batch_size", false,
     "write batch.tokens or batch.sequences for a whole step, and microbatch.tokens for what is "
     "held at once"},
    {"gradient_accumulation_steps", false, "it follows from batch.tokens and microbatch.tokens"},
    {"train_batch_size", false, "write batch.tokens or batch.sequences for a whole step"},
    {"train_samples", false, "write train.steps or train.epochs"},
    {"warmup_ratio", false, "write optimizer.warmup: 0.03 (a share) or 20 (steps)"},
    {"min_lr", false, "write optimizer.min_lr_ratio, a share of optimizer.lr"},
    {"adam_beta1", false, "write optimizer.betas: [0.9, 0.95]"},
    {"adam_beta2", false, "write optimizer.betas: [0.9, 0.95]"},
    {"optim", false, "AdamW is the only optimizer; leave the key out"},
    {"optimizer.name", false, "AdamW is the only optimizer; leave the key out"},
    {"gradient_checkpointing", false, "write train.recompute: block"},
    {"recompute_granularity", false, "write train.recompute: block"},
    {"dataset", false, "write data.train: [FILE, ...]"},
    {"datasets", false, "write data.train: [FILE, ...]"},
    {"val_set_size", false, "write data.eval_fraction, a share of the documents"},
    {"packing", false, "sequences are always packed, never across each other; leave the key out"},
    {"sample_packing", false,
     "sequences are always packed, never across each other; leave the key out"},
    {"bf16", false, "write train.dtype: bfloat16"},
    {"fp16", false, "there is no float16 training; write train.dtype: bfloat16 or float32"},
    {"tf32", false, "write train.dtype: bfloat16 or float32"},
    {"tokenizer", false, "the tokenizer stands in the model's directory"},
    {"tokenizer_type", false, "the tokenizer stands in the model's directory"},
    {"resume_from_checkpoint", false, "a run goes on from its output directory by itself"},
    {"overwrite_output_dir", false,
     "a run goes on from its output directory; choose another output to start anew"},
    {"deterministic", false, "runs are always deterministic; leave the key out"},
    {"num_layers", false, "the architecture stands in the model's config.json"},
    {"hidden_size", false, "the architecture stands in the model's config.json"},
    {"wandb_project", false, "OUTPUT/metrics.jsonl has every step; leave the key out"},
    {"report_to", false, "OUTPUT/metrics.jsonl has every step; leave the key out"},
    {0},
};

const struct dt_config_table dt_run_config_table = {
    .keys = keys,
    .count = sizeof keys / sizeof *keys,
    .sections = sections,
    .words = words,
    .size = sizeof(struct dt_run_config),
};
