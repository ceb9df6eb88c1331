/* Rotary tables.
 *
 * Inverse frequencies follow transformers' operations in its order and its precision (fp32 where it
 * has tensors, double where it has Python numbers), because the position multiplies them: at
 * position 10 000 one unit in the last place is an angle of 1e-3 · 6e-8 · 10 000. Sine and cosine
 * are then taken in double of the rounded angle, which can only be nearer to the truth. */
#include "arch/arch.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* theta^(2i/D), the exponent in fp32. */
static float power(double theta, int64_t i, int64_t half)
{
    float exponent = (float)(2 * i) / (float)(2 * half);
    return (float)pow((double)(float)theta, (double)exponent);
}

static float llama3(const struct dt_rope *r, float inv)
{
    double old = (double)r->original_positions;
    float low = (float)(old / r->low_freq_factor), high = (float)(old / r->high_freq_factor);
    float wave = (float)(2 * pi) / inv;
    if (wave < high)
        return inv;
    if (wave > low)
        return inv / (float)r->factor;
    float smooth = ((float)old / wave - (float)r->low_freq_factor) /
                   (float)(r->high_freq_factor - r->low_freq_factor);
    return (1.0f - smooth) * inv / (float)r->factor + smooth * inv;
}

/* Index at which a wave turns `turns` times over the original length. */
static double yarn_correction(const struct dt_rope *r, double turns)
{
    double D = (double)(2 * r->half);
    return D * log((double)r->original_positions / (turns * 2 * pi)) / (2 * log(r->theta));
}

static float yarn(const struct dt_rope *r, int64_t i)
{
    double low = yarn_correction(r, r->beta_fast), high = yarn_correction(r, r->beta_slow);
    if (r->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)(2 * r->half - 1));
    if (low == high)
        high += 0.001;
    float ramp = ((float)i - (float)low) / (float)(high - low);
    ramp = fminf(fmaxf(ramp, 0.0f), 1.0f);
    float keep = 1.0f - ramp, frequency = power(r->theta, i, r->half);
    float extrapolated = 1.0f / frequency;
    float interpolated = 1.0f / ((float)r->factor * frequency);
    return interpolated * (1.0f - keep) + extrapolated * keep;
}

/* Beyond the original length the base grows with the sequence (NTK), fp32 as in transformers. */
static double dynamic_theta(const struct dt_rope *r, int64_t seq_len)
{
    if (seq_len <= r->original_positions)
        return r->theta;
    double D = (double)(2 * r->half);
    float stretch = (float)r->factor * (float)seq_len / (float)r->original_positions;
    stretch -= (float)(r->factor - 1.0);
    return (double)((float)r->theta * (float)pow((double)stretch, (double)(float)(D / (D - 2))));
}

static float inverse_frequency(const struct dt_rope *r, int64_t i, double theta)
{
    switch (r->kind) {
    case DT_ROPE_LINEAR:
        return 1.0f / power(theta, i, r->half) / (float)r->factor;
    case DT_ROPE_LLAMA3:
        return llama3(r, 1.0f / power(theta, i, r->half));
    case DT_ROPE_YARN:
        return yarn(r, i);
    default:
        return 1.0f / power(theta, i, r->half);
    }
}

void dt_arch_rope_table(const struct dt_arch *a, int64_t positions, int64_t seq_len, float *table)
{
    const struct dt_rope *r = &a->rope;
    double theta = r->kind == DT_ROPE_DYNAMIC ? dynamic_theta(r, seq_len) : r->theta;
    for (int64_t i = 0; i < r->half; i++) {
        float inv = inverse_frequency(r, i, theta);
        for (int64_t p = 0; p < positions; p++) {
            float *row = table + p * 2 * r->half; /* [2, half] */
            double angle = (double)((float)p * inv);
            row[i] = (float)(cos(angle) * r->attention_factor);
            row[r->half + i] = (float)(sin(angle) * r->attention_factor);
        }
    }
}
