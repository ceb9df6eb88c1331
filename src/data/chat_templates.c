/* The built-in chat templates. Every text is that of the template that ships with the model family,
 * and tests compare each with what transformers writes (tests/golden/chat). */
#include "data/chat_internal.h"

#define CHATML                                                                                     \
    .system_before = "\1<|im_start|>\2system\n", .system_after = "\1<|im_end|>\2\n",               \
    .user_before = "\1<|im_start|>\2user\n", .user_after = "\1<|im_end|>\2\n",                     \
    .assistant_before = "\1<|im_start|>\2assistant\n", .assistant_after = "\1<|im_end|>\2",        \
    .assistant_tail = "\n", .opening = "\1<|im_start|>\2assistant\n"
#define LLAMA3(role) "\1<|start_header_id|>\2" role "\1<|end_header_id|>\2\n\n"

const struct dt_chat_template dt_chat_templates[] = {
    {.name = "chatml",
     CHATML,
     .tool_before = "\1<|im_start|>\2tool\n",
     .tool_after = "\1<|im_end|>\2\n"},
    {.name = "chatml-qwen2", CHATML, .system_default = "You are a helpful assistant."},
    {.name = "chatml-qwen2.5",
     CHATML,
     .system_default = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."},
    {.name = "llama2",
     .fold_before = "<<SYS>>\n",
     .fold_after = "\n<</SYS>>\n\n",
     .user_before = "\1B\2[INST] ",
     .user_after = " [/INST]",
     .assistant_before = " ",
     .assistant_after = " \1E\2",
     .opening = "",
     .alternate = true,
     .trim = true},
    {.name = "llama3",
     .start = "\1B\2",
     .system_before = LLAMA3("system"),
     .system_after = "\1<|eot_id|>\2",
     .user_before = LLAMA3("user"),
     .user_after = "\1<|eot_id|>\2",
     .assistant_before = LLAMA3("assistant"),
     .assistant_after = "\1<|eot_id|>\2",
     .tool_before = LLAMA3("tool"),
     .tool_after = "\1<|eot_id|>\2",
     .opening = LLAMA3("assistant"),
     .trim = true},
    {.name = "mistral",
     .start = "\1B\2",
     .fold_before = "",
     .fold_after = "\n\n",
     .user_before = " \1?[INST]\2 ",
     .user_after = " \1?[/INST]\2",
     .assistant_before = " ",
     .assistant_after = "\1E\2",
     .opening = "",
     .alternate = true},
    {.name = "mistral-v1", /* as first published: no system, no space before an answer */
     .start = "\1B\2",
     .user_before = "\1?[INST]\2 ",
     .user_after = " \1?[/INST]\2",
     .assistant_before = "",
     .assistant_after = "\1E\2",
     .opening = "",
     .alternate = true},
    {.name = "alpaca",
     .system_before = "",
     .system_after = "\n\n",
     .system_default = "Below is an instruction that describes a task. Write a response that "
                       "appropriately completes the request.",
     .user_between = "\n\n",
     .user_before = "### Instruction:\n",
     .user_after = "\n\n### Response:\n",
     .assistant_before = "",
     .assistant_after = "\1E\2",
     .opening = "",
     .alternate = true},
};
const int dt_chat_template_count = (int)(sizeof dt_chat_templates / sizeof dt_chat_templates[0]);
