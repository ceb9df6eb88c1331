/* Any bytes as config.json: an architecture whose tables hold together, or an error that names the
 * file.
 *
 * covers: src/arch/config.c src/arch/refuse.c src/arch/attention.c src/arch/tensors.c
 * covers: src/arch/rope.c src/arch/slots.c */
#include "arch/arch.h"
#include "base/error.h"
#include "base/log.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define POSITIONS 3
#define HALF_MAX 512
#define LOOKED_UP 64 /* tensors at each end: thousands of layers would only cost speed */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool good)
{
    if (!good)
        abort();
}

static void check_tensors(const struct dt_arch *a)
{
    int64_t total = 0;
    for (int64_t i = 0; i < a->tensor_count; i++) {
        const struct dt_tensor *t = &a->tensors[i];
        must(t->rows >= 1 && t->cols >= 1 && (t->rank == 2 || t->rows == 1));
        must(dt_arch_tensor(a, t->layer, t->role) == i);
        if (i < LOOKED_UP || i >= a->tensor_count - LOOKED_UP)
            must(dt_arch_tensor_by_name(a, t->name, NULL) == i);
        total += t->rows * t->cols;
    }
    must(total == dt_arch_parameters(a) && total > 0);
    must(a->H % a->K == 0 && isfinite(dt_arch_forward_flops(a, 1024)));
}

static void check_slots(const struct dt_arch *a)
{
    for (enum dt_slot s = 0; s < DT_SLOTS; s++) {
        struct dt_slot_info info = dt_arch_slot(a, s, DT_BF16);
        must(info.name && info.width >= 0 && info.width <= (int64_t)1 << 32);
    }
    int64_t chunk = dt_arch_loss_chunk(a, 100000);
    must(chunk >= 128 && chunk <= 100000);
}

static void check_rope(const struct dt_arch *a)
{
    if (a->rope.half == 0 || a->rope.half > HALF_MAX)
        return;
    size_t n = (size_t)dt_arch_rope_elements(a, POSITIONS);
    float *table = malloc(n * sizeof *table);
    must(table != NULL);
    dt_arch_rope_table(a, POSITIONS, a->positions + 1, table);
    for (int64_t i = 0; i < a->rope.half; i++)
        must(fabs((double)table[a->rope.half + i]) == 0); /* sin of position 0 */
    free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct dt_arch *a;
    dt_log_set_level(DT_LOG_ERROR);
    int rc = dt_arch_parse((const char *)data, size, "dir/config.json", &a);
    if (rc == DT_OK) {
        check_tensors(a);
        check_slots(a);
        check_rope(a);
    } else {
        must((rc == DT_E_MODEL || rc == DT_E_UNSUPPORTED) && a == NULL);
        must(strstr(dt_error_message(), "dir/config.json") != NULL);
    }
    dt_arch_free(a);
    return 0;
}
