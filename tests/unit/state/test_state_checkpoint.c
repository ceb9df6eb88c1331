/* Checkpoints: what is written comes back, what is damaged is found, what is needed is never lost.
 * Kills and full disks at every operation are in tests/fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "state/checkpoint.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROWS 300
#define COLS 257
#define ELEMENTS (ROWS * COLS)

static char root[64], dir[96];
static float values[ELEMENTS];

static const struct dt_tensor_spec specs[2] = {{"w", DT_F32, 2, {ROWS - 1, COLS}},
                                               {"n", DT_F32, 1, {COLS}}};

static void assert_says(int rc, int code, const char *words)
{
    if (rc != code || !strstr(dt_error_message(), words))
        print_message("%d '%s' lacks '%s'\n", rc, dt_error_message(), words);
    assert_int_equal(rc, code);
    assert_non_null(strstr(dt_error_message(), words));
}

static void add_arrays(struct dt_checkpoint_writer *w)
{
    static const char *const stem[3] = {"model", "exp_avg", "exp_avg_sq"};
    for (int k = 0; k < 3; k++) {
        struct dt_tensor_plan plan;
        int file;
        assert_int_equal(dt_tensors_plan(specs, 2, stem[k], 0, &plan), DT_OK);
        assert_int_equal(dt_checkpoint_add_tensors(w, k ? "optimizer" : "", &plan, &file), DT_OK);
        assert_int_equal(dt_checkpoint_write(w, file, plan.offset[0], values, sizeof values),
                         DT_OK);
        dt_tensor_plan_free(&plan);
    }
}

static void save_step(int64_t step)
{
    struct dt_checkpoint_writer *w;
    char json[64], path[DT_PATH];
    assert_int_equal(dt_checkpoint_begin(dir, step, &w), DT_OK);
    add_arrays(w);
    snprintf(json, sizeof json, "{\"step\": %lld}", (long long)step);
    assert_int_equal(dt_checkpoint_put(w, "trainer.json", json, strlen(json)), DT_OK);
    int rc = dt_checkpoint_commit(w, path);
    if (rc < 0)
        print_message("%s\n", dt_error_message());
    assert_int_equal(rc, DT_OK);
    assert_int_equal(dt_checkpoint_verify(path), DT_OK);
}

static const char *step_file(int64_t step, const char *name)
{
    static char path[DT_PATH];
    char part[128];
    snprintf(part, sizeof part, "step-%08lld/%s", (long long)step, name);
    assert_int_equal(dt_path_join(path, dir, part), DT_OK);
    return path;
}

static void flip(const char *path, size_t bit)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(dt_fd_read_at(fd, path, &byte, 1, bit / 8), DT_OK);
    byte ^= (unsigned char)(1 << bit % 8);
    assert_int_equal(dt_fd_write_at(fd, path, &byte, 1, bit / 8), DT_OK);
    close(fd);
}

static int fresh(void **state)
{
    (void)state;
    return dt_remove_tree(dir);
}

/* ---- Writing and reading ---- */

static void what_is_written_comes_back(void **state)
{
    (void)state;
    struct dt_checkpoint c;
    save_step(7);
    assert_int_equal(dt_checkpoint_open(step_file(7, ""), &c), DT_OK);
    assert_int_equal(c.step, 7);
    assert_int_equal(json_integer_value(json_object_get(c.trainer, "step")), 7);
    assert_int_equal(c.model.bytes, sizeof values);
    assert_memory_equal(c.model.tensors[0].data, values, sizeof values);
    assert_memory_equal(c.exp_avg.tensors[0].data, values, sizeof values);
    assert_memory_equal(c.exp_avg_sq.tensors[0].data, values, sizeof values);
    dt_checkpoint_close(&c);
}

struct part {
    struct dt_checkpoint_writer *w;
    int file, index, count;
    size_t start;
};

/* Every count-th piece of an odd size, from the end: no order, no alignment. */
static void *write_part(void *argument)
{
    struct part *p = argument;
    size_t piece = 4099, pieces = (sizeof values + piece - 1) / piece;
    for (size_t i = pieces; i-- > 0;) {
        if (i % (size_t)p->count != (size_t)p->index)
            continue;
        size_t at = i * piece, n = sizeof values - at < piece ? sizeof values - at : piece;
        if (dt_checkpoint_write(p->w, p->file, p->start + at, (const char *)values + at, n) < 0)
            return (void *)1;
    }
    return NULL;
}

static void many_writers_share_a_file(void **state)
{
    (void)state;
    struct dt_checkpoint_writer *w;
    struct dt_tensor_plan plan;
    struct dt_tensor_set set;
    struct part parts[4];
    pthread_t threads[4];
    int file;
    assert_int_equal(dt_checkpoint_begin(dir, 1, &w), DT_OK);
    assert_int_equal(dt_tensors_plan(specs, 2, "model", 0, &plan), DT_OK);
    assert_int_equal(dt_checkpoint_add_tensors(w, "", &plan, &file), DT_OK);
    for (int i = 0; i < 4; i++) {
        parts[i] = (struct part){w, file, i, 4, plan.offset[0]};
        assert_int_equal(pthread_create(&threads[i], NULL, write_part, &parts[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    dt_tensor_plan_free(&plan);
    assert_int_equal(dt_checkpoint_commit(w, NULL), DT_OK);
    assert_int_equal(dt_checkpoint_verify(step_file(1, "")), DT_OK);
    assert_int_equal(dt_tensors_open(step_file(1, ""), &set), DT_OK);
    assert_memory_equal(set.tensors[0].data, values, sizeof values);
    dt_tensors_close(&set);
}

static void an_incomplete_save_is_never_committed(void **state)
{
    (void)state;
    static const struct {
        size_t offset[2], bytes[2];
        const char *words;
    } saves[] = {
        {{0, 60}, {50, 40}, "from 50 to 60 were written by nobody"},
        {{0, 50}, {60, 50}, "from 50 to 60 were written twice"},
        {{0, 50}, {50, 40}, "from 90 to 100 were written by nobody"},
        {{0, 50}, {50, 60}, "leads beyond its 100 bytes"},
    };
    struct dt_checkpoint_list list;
    for (size_t i = 0; i < sizeof saves / sizeof *saves; i++) {
        struct dt_checkpoint_writer *w;
        int file;
        assert_int_equal(dt_checkpoint_begin(dir, 3, &w), DT_OK);
        assert_int_equal(dt_checkpoint_add(w, "data", 100, &file), DT_OK);
        for (int k = 0; k < 2; k++)
            assert_int_equal(
                dt_checkpoint_write(w, file, saves[i].offset[k], values, saves[i].bytes[k]), DT_OK);
        assert_says(dt_checkpoint_commit(w, NULL), DT_E_CHECKPOINT, saves[i].words);
    }
    assert_int_equal(dt_checkpoint_scan(dir, &list), DT_OK);
    assert_int_equal(list.count + list.leftovers, 0);
    dt_checkpoint_list_free(&list);
}

static void sharded_saves_are_read(void **state)
{
    (void)state;
    struct dt_checkpoint_writer *w;
    struct dt_checkpoint c;
    static const char *const stem[3] = {"model", "exp_avg", "exp_avg_sq"};
    assert_int_equal(dt_checkpoint_begin(dir, 2, &w), DT_OK);
    for (int k = 0; k < 3; k++) {
        struct dt_tensor_plan plan;
        int first;
        assert_int_equal(dt_tensors_plan(specs, 2, stem[k], 1000, &plan), DT_OK);
        assert_int_equal(plan.file_count, 2);
        assert_int_equal(dt_checkpoint_add_tensors(w, k ? "optimizer" : "", &plan, &first), DT_OK);
        const char *from = (const char *)values;
        for (size_t i = 0; i < 2; i++, from += plan.bytes[0])
            assert_int_equal(dt_checkpoint_write(w, first + (int)plan.file_of[i], plan.offset[i],
                                                 from, plan.bytes[i]),
                             DT_OK);
        dt_tensor_plan_free(&plan);
    }
    assert_int_equal(dt_checkpoint_put(w, "trainer.json", "{\"step\": 2}", 11), DT_OK);
    assert_int_equal(dt_checkpoint_commit(w, NULL), DT_OK);
    assert_int_equal(dt_checkpoint_open(step_file(2, ""), &c), DT_OK);
    assert_int_equal(c.model.file_count, 2);
    assert_int_equal(c.exp_avg_sq.count, 2);
    dt_checkpoint_close(&c);
}

/* ---- Damage ---- */

static const char *const files[] = {"model.safetensors", "optimizer/exp_avg.safetensors",
                                    "optimizer/exp_avg_sq.safetensors", "trainer.json",
                                    "manifest.json"};
#define FILES (sizeof files / sizeof *files)

static void any_flipped_bit_is_found(void **state)
{
    (void)state;
    save_step(1);
    for (size_t k = 0; k < FILES; k++) {
        size_t size;
        char path[DT_PATH];
        snprintf(path, sizeof path, "%s", step_file(1, files[k]));
        assert_int_equal(dt_file_size(path, &size), DT_OK);
        size_t stride = size > 10000 ? 8 * size / 61 : 17; /* ends, headers and the middle */
        for (size_t bit = 0; bit < 8 * size; bit += stride) {
            flip(path, bit);
            assert_says(dt_checkpoint_verify(step_file(1, "")), DT_E_CHECKPOINT, files[k]);
            flip(path, bit);
        }
        flip(path, 8 * size - 1);
        assert_says(dt_checkpoint_verify(step_file(1, "")), DT_E_CHECKPOINT, files[k]);
        flip(path, 8 * size - 1);
    }
    assert_int_equal(dt_checkpoint_verify(step_file(1, "")), DT_OK);
    flip(step_file(1, "model.safetensors"), 8 * 200000);
    assert_says(dt_checkpoint_verify(step_file(1, "")), DT_E_CHECKPOINT,
                "model.safetensors: bytes 176 to 308575 do not match their checksum");
}

static void any_cut_file_is_found(void **state)
{
    (void)state;
    struct dt_checkpoint c;
    struct dt_checkpoint_list list;
    for (size_t k = 0; k < FILES; k++) {
        save_step(1);
        char path[DT_PATH];
        size_t size;
        snprintf(path, sizeof path, "%s", step_file(1, files[k]));
        assert_int_equal(dt_file_size(path, &size), DT_OK);
        for (size_t cut = size - 1;; cut = cut / 3) {
            assert_int_equal(truncate(path, (off_t)cut), 0);
            assert_says(dt_checkpoint_verify(step_file(1, "")), DT_E_CHECKPOINT, files[k]);
            assert_says(dt_checkpoint_open(step_file(1, ""), &c), DT_E_CHECKPOINT, files[k]);
            assert_int_equal(dt_checkpoint_scan(dir, &list), DT_OK);
            assert_int_equal(list.count, 1);
            assert_false(list.entries[0].complete);
            dt_checkpoint_list_free(&list);
            if (cut == 0)
                break;
        }
        assert_int_equal(dt_unlink(path), DT_OK);
        assert_says(dt_checkpoint_open(step_file(1, ""), &c), DT_E_CHECKPOINT, files[k]);
    }
}

static void strange_manifests_are_refused(void **state)
{
    (void)state;
    struct dt_checkpoint c;
    static const char *const strange[] = {"", "{}", "\0\0\0\0", "null", "{\"files\": {}}", "x"};
    save_step(1);
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        assert_int_equal(
            dt_file_write(step_file(1, "manifest.json"), strange[i], strlen(strange[i])), DT_OK);
        assert_says(dt_checkpoint_open(step_file(1, ""), &c), DT_E_CHECKPOINT, "its own checksum");
    }
    save_step(1); /* a save of the same step mends it */
    char to[DT_PATH];
    snprintf(to, sizeof to, "%s", step_file(9, ""));
    to[strlen(to) - 1] = '\0';
    assert_int_equal(dt_rename(step_file(1, ""), to), DT_OK);
    struct dt_checkpoint_list list;
    assert_int_equal(dt_checkpoint_scan(dir, &list), DT_OK);
    assert_non_null(strstr(list.entries[0].problem, "saved at step 1"));
    dt_checkpoint_list_free(&list);
}

static void a_foreign_file_is_not_read(void **state)
{
    (void)state;
    struct dt_checkpoint_writer *w;
    struct dt_checkpoint c;
    const void *data[1] = {values};
    struct dt_tensor_spec other = {"w", DT_F32, 1, {4}};
    save_step(1);
    assert_int_equal(dt_checkpoint_begin(dir, 2, &w), DT_OK);
    assert_int_equal(dt_checkpoint_put(w, "trainer.json", "{\"step\": 2}", 11), DT_OK);
    assert_int_equal(dt_checkpoint_commit(w, NULL), DT_OK);
    assert_says(dt_checkpoint_open(step_file(2, ""), &c), DT_E_MODEL, "holds neither");
    assert_int_equal(dt_tensors_save(step_file(2, "model.safetensors"), &other, data, 1), DT_OK);
    assert_says(dt_checkpoint_open(step_file(2, ""), &c), DT_E_CHECKPOINT,
                "manifest does not list it");
}

/* ---- Which one ---- */

static void the_newest_that_validates_is_taken(void **state)
{
    (void)state;
    char path[DT_PATH], moved[DT_PATH];
    int64_t step;
    assert_int_equal(dt_checkpoint_newest(dir, path, &step), DT_OK);
    assert_int_equal(step, -1);
    for (int64_t i = 1; i <= 3; i++)
        save_step(i * 100);
    assert_int_equal(dt_checkpoint_newest(dir, path, &step), DT_OK);
    assert_int_equal(step, 300);
    flip(step_file(300, "optimizer/exp_avg.safetensors"), 100000);
    assert_int_equal(truncate(step_file(200, "manifest.json"), 10), 0);
    assert_int_equal(dt_checkpoint_newest(dir, path, &step), DT_OK);
    assert_int_equal(step, 100);
    assert_non_null(strstr(path, "step-00000100"));
    assert_int_equal(truncate(step_file(100, "model.safetensors"), 0), 0);
    assert_says(dt_checkpoint_newest(dir, path, &step), DT_E_CHECKPOINT,
                "3 checkpoints and none validates");
    assert_non_null(strstr(dt_error_message(), "--start-over"));
    assert_int_equal(step, -1);
    assert_int_equal(dt_checkpoint_set_aside(dir, moved), DT_OK);
    assert_true(dt_file_is_dir(moved));
    assert_int_equal(dt_checkpoint_newest(dir, path, &step), DT_OK);
    assert_int_equal(step, -1);
    save_step(1);
    assert_int_equal(dt_checkpoint_set_aside(dir, path), DT_OK);
    assert_string_not_equal(path, moved);
    assert_int_equal(dt_remove_tree(moved), DT_OK);
    assert_int_equal(dt_remove_tree(path), DT_OK);
    assert_int_equal(dt_checkpoint_set_aside(dir, moved), DT_OK);
    assert_string_equal(moved, "");
}

static void assert_steps(const char *steps)
{
    struct dt_checkpoint_list list;
    char found[256] = "";
    assert_int_equal(dt_checkpoint_scan(dir, &list), DT_OK);
    for (size_t i = 0; i < list.count; i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%lld", i ? " " : "",
                 (long long)list.entries[i].step);
    assert_string_equal(found, steps);
    assert_int_equal(list.leftovers, 0);
    dt_checkpoint_list_free(&list);
}

static void retention_keeps_what_it_must(void **state)
{
    (void)state;
    size_t deleted;
    for (int64_t i = 1; i <= 6; i++)
        save_step(i * 10);
    assert_int_equal(dt_checkpoint_retain(dir, 0, 0, false, &deleted), DT_OK);
    assert_int_equal(deleted, 0);
    assert_int_equal(dt_checkpoint_retain(dir, 2, 30, true, &deleted), DT_OK);
    assert_int_equal(deleted, 3);
    assert_steps("10 20 30 40 50 60");
    assert_int_equal(dt_checkpoint_retain(dir, 2, 30, false, &deleted), DT_OK);
    assert_int_equal(deleted, 3);
    assert_steps("30 50 60");
    /* A newest one whose bytes are bad: nothing goes. */
    flip(step_file(60, "model.safetensors"), 100000);
    assert_says(dt_checkpoint_retain(dir, 1, 0, false, &deleted), DT_E_CHECKPOINT,
                "older checkpoints are kept");
    assert_steps("30 50 60");
    /* A newest one without manifest does not count, and is not touched. */
    assert_int_equal(dt_unlink(step_file(60, "manifest.json")), DT_OK);
    assert_int_equal(dt_checkpoint_retain(dir, 1, 0, false, &deleted), DT_OK);
    assert_steps("50 60");
    assert_int_equal(dt_checkpoint_retain(dir, 1, 0, false, &deleted), DT_OK);
    assert_steps("50 60");
}

static void cleaning_finishes_what_was_begun(void **state)
{
    (void)state;
    char path[DT_PATH];
    int64_t step;
    save_step(1);
    save_step(2);
    snprintf(path, sizeof path, "%s/.old-00ff-step-00000002", dir);
    assert_int_equal(dt_rename(step_file(2, ""), path), DT_OK);
    snprintf(path, sizeof path, "%s/.tmp-00ff-step-00000003/optimizer", dir);
    assert_int_equal(dt_mkdirs(path), DT_OK);
    snprintf(path, sizeof path, "%s/.del-00ff-step-00000000/x", dir);
    assert_int_equal(dt_mkdirs(path), DT_OK);
    snprintf(path, sizeof path, "%s/.old-00ff-step-00000001/x",
             dir); /* replaced by one that stands */
    assert_int_equal(dt_mkdirs(path), DT_OK);
    snprintf(path, sizeof path, "%s/notes/mine", dir);
    assert_int_equal(dt_mkdirs(path), DT_OK);
    assert_int_equal(dt_checkpoint_clean(dir), DT_OK);
    assert_steps("1 2");
    assert_true(dt_file_exists(path));
    assert_int_equal(dt_checkpoint_newest(dir, path, &step), DT_OK);
    assert_int_equal(step, 2);
}

/* ---- The lock ---- */

static void a_second_run_is_refused_by_name(void **state)
{
    (void)state;
    char output[DT_PATH], words[64];
    struct dt_run_lock mine, again;
    snprintf(output, sizeof output, "%s/locked/run", root);
    assert_int_equal(dt_run_lock(output, &mine), DT_OK);
    snprintf(words, sizeof words, "process %ld on ", (long)getpid());
    assert_says(dt_run_lock(output, &again), DT_E_BUSY, words);
    pid_t child = fork();
    if (child == 0)
        _exit(dt_run_lock(output, &again) == DT_E_BUSY ? 0 : 1);
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    dt_run_unlock(&mine);
    child = fork(); /* takes the lock and dies without a word */
    if (child == 0)
        _exit(dt_run_lock(output, &again) == DT_OK ? 0 : 1);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(dt_run_lock(output, &mine), DT_OK);
    dt_run_unlock(&mine);
    assert_int_equal(dt_file_write(mine.path, "rubbish", 7), DT_OK);
    assert_int_equal(dt_run_lock(output, &mine), DT_OK);
    dt_run_unlock(&mine);
}

static void a_directory_is_found_as_users_give_it(void **state)
{
    (void)state;
    char found[DT_PATH];
    save_step(1);
    assert_int_equal(dt_checkpoint_dir(found, root), DT_OK);
    assert_string_equal(found, dir);
    assert_int_equal(dt_checkpoint_dir(found, dir), DT_OK);
    assert_string_equal(found, dir);
    assert_says(dt_checkpoint_dir(found, "/no/such"), DT_E_NOT_FOUND, "was expected");
}

static int setup(void **state)
{
    (void)state;
    bool memory = access("/dev/shm", W_OK) == 0;
    snprintf(root, sizeof root, "%s/dt_checkpoint_XXXXXX", memory ? "/dev/shm" : "/tmp");
    if (!mkdtemp(root))
        return -1;
    snprintf(dir, sizeof dir, "%s/checkpoints", root);
    for (int i = 0; i < ELEMENTS; i++)
        values[i] = (float)i * 0.37f;
    dt_log_set_level(DT_LOG_ERROR);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return dt_remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_is_written_comes_back, fresh),
        cmocka_unit_test_setup(many_writers_share_a_file, fresh),
        cmocka_unit_test_setup(an_incomplete_save_is_never_committed, fresh),
        cmocka_unit_test_setup(sharded_saves_are_read, fresh),
        cmocka_unit_test_setup(any_flipped_bit_is_found, fresh),
        cmocka_unit_test_setup(any_cut_file_is_found, fresh),
        cmocka_unit_test_setup(strange_manifests_are_refused, fresh),
        cmocka_unit_test_setup(a_foreign_file_is_not_read, fresh),
        cmocka_unit_test_setup(the_newest_that_validates_is_taken, fresh),
        cmocka_unit_test_setup(retention_keeps_what_it_must, fresh),
        cmocka_unit_test_setup(cleaning_finishes_what_was_begun, fresh),
        cmocka_unit_test_setup(a_second_run_is_refused_by_name, fresh),
        cmocka_unit_test_setup(a_directory_is_found_as_users_give_it, fresh),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
