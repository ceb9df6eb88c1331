/* Any bytes as RUN.yaml: a configuration or an error, and one that is accepted prints to a text
 * that is accepted and prints the same. The input is the file; what follows a NUL byte are
 * overrides of the command line, each ended by a NUL.
 *
 * covers: src/base/config.c src/base/config_names.c src/base/config_value.c src/base/config_yaml.c
 * covers: src/base/config_print.c src/train/run_config.c */
#include "base/error.h"
#include "base/log.h"
#include "train/run_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OVERRIDES 16

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

static void check_round_trip(const struct dt_run_config *cfg)
{
    struct dt_run_config again;
    char *text[2] = {NULL, NULL};
    size_t size[2];
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        FILE *f = open_memstream(&text[i], &size[i]);
        must(f != NULL);
        dt_run_config_print(i ? &again : cfg, f);
        must(fclose(f) == 0);
        must(dt_run_config_hash(i ? &again : cfg, &hash[i]) == 0);
        if (i == 0)
            must(dt_run_config_parse("again", "/", text[0], size[0], NULL, 0, &again) == 0);
    }
    must(size[0] == size[1] && memcmp(text[0], text[1], size[0]) == 0 && hash[0] == hash[1]);
    dt_run_config_free(&again);
    free(text[0]);
    free(text[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *overrides[MAX_OVERRIDES];
    struct dt_run_config cfg;
    int n = 0;
    dt_log_set_level(DT_LOG_ERROR);
    char *text = malloc(size + 1);
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    size_t yaml = strlen(text);
    for (size_t at = yaml + 1; at < size && n < MAX_OVERRIDES; at += strlen(text + at) + 1)
        overrides[n++] = text + at;
    int rc = dt_run_config_parse("fuzz.yaml", "/dir", text, yaml, overrides, n, &cfg);
    if (rc == 0)
        check_round_trip(&cfg);
    else
        must((rc == DT_E_CONFIG || rc == DT_E_UNSUPPORTED) && dt_error_message()[0] != '\0');
    dt_run_config_free(&cfg);
    free(text);
    return 0;
}
