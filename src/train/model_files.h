/* A Hugging Face directory beside its weights: config.json with another dtype, and the small files
 * that travel with a model. */
#ifndef DT_TRAIN_MODEL_FILES_H
#define DT_TRAIN_MODEL_FILES_H

#include "base/dtype.h"

#include <jansson.h>

/* Ends with NULL: tokenizer.json and the like. */
extern const char *const dt_model_companions[];

/* DIR/config.json with its dtype (in the spelling it uses) set. The caller's reference. */
int dt_model_config_as(const char *dir, enum dt_dtype dtype, json_t **out);

/* Writes the model in `from` to the new directory `to`, float tensors as `dtype` (rounded to
 * nearest even), whole or not at all. */
int dt_model_export(const char *from, const char *to, enum dt_dtype dtype);

#endif
