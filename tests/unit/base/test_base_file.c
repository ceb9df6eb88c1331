/* Files: what is read is what stands there, what is refused is refused by name, nothing is followed
 * out of a tree, and a small file is replaced whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static const char *in_root(const char *name)
{
    static char paths[8][DT_PATH];
    static int next;
    char *path = paths[next++ % 8];
    assert_int_equal(dt_path_join(path, root, name), DT_OK);
    return path;
}

static void paths_join_and_part(void **state)
{
    (void)state;
    static const struct {
        const char *dir, *name, *joined;
    } joins[] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"a", "/b", "/b"}, {"/", "b", "/b"}};
    static const struct {
        const char *path, *dir, *base;
    } parts[] = {{"a/b", "a", "b"},
                 {"b", ".", "b"},
                 {"/b", "/", "b"},
                 {"a//b", "a", "b"},
                 {"/a/b/", "/a", ""}};
    char out[DT_PATH];
    for (size_t i = 0; i < sizeof joins / sizeof *joins; i++) {
        assert_int_equal(dt_path_join(out, joins[i].dir, joins[i].name), DT_OK);
        assert_string_equal(out, joins[i].joined);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_int_equal(dt_path_dirname(out, parts[i].path), DT_OK);
        assert_string_equal(out, parts[i].dir);
        assert_string_equal(dt_path_basename(parts[i].path), parts[i].base);
    }
    char *longest = malloc(DT_PATH + 1);
    memset(longest, 'x', DT_PATH);
    longest[DT_PATH] = '\0';
    assert_int_equal(dt_path_join(out, "a", longest), DT_E_USAGE);
    assert_int_equal(dt_mkdirs(longest), DT_E_USAGE);
    free(longest);
    assert_true(dt_path_ends_with("a.json", ".json"));
    assert_false(dt_path_ends_with("json", ".json"));
}

static void reading_gives_all_bytes(void **state)
{
    (void)state;
    char data[70000], *text;
    size_t size;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    assert_int_equal(dt_file_write(in_root("f"), data, sizeof data), DT_OK);
    assert_int_equal(dt_file_read(in_root("f"), sizeof data, &text, &size), DT_OK);
    assert_int_equal(size, sizeof data);
    assert_memory_equal(text, data, size);
    assert_int_equal(text[size], 0);
    free(text);
    struct dt_map map;
    assert_int_equal(dt_file_map(in_root("f"), &map), DT_OK);
    assert_int_equal(map.size, sizeof data);
    assert_memory_equal(map.data, data, sizeof data);
    dt_file_unmap(&map);
    assert_int_equal(dt_file_write(in_root("f"), "", 0), DT_OK);
    assert_int_equal(dt_file_read(in_root("f"), 10, &text, &size), DT_OK);
    assert_int_equal(size, 0);
    free(text);
    assert_int_equal(dt_file_map(in_root("f"), &map), DT_OK);
    assert_int_equal(map.size, 0);
    assert_non_null(map.data);
    dt_file_unmap(&map);
    assert_int_equal(dt_file_read("/proc/self/status", 1 << 20, &text, &size),
                     DT_OK); /* says size 0 */
    assert_true(size > 100);
    free(text);
}

static void assert_says(int rc, int code, const char *words)
{
    assert_int_equal(rc, code);
    if (!strstr(dt_error_message(), words))
        print_message("'%s' lacks '%s'\n", dt_error_message(), words);
    assert_non_null(strstr(dt_error_message(), words));
}

static void what_cannot_be_read_is_refused(void **state)
{
    (void)state;
    char *text, byte;
    size_t size;
    struct dt_map map;
    int fd;
    assert_says(dt_file_read(root, 10, &text, &size), DT_E_DATA, "is a directory");
    assert_says(dt_file_map(root, &map), DT_E_DATA, "is a directory");
    assert_says(dt_file_size(root, &size), DT_E_DATA, "is a directory");
    assert_says(dt_file_read("/dev/zero", 10, &text, &size), DT_E_DATA, "not a plain file");
    assert_says(dt_file_read(in_root("none"), 10, &text, &size), DT_E_NOT_FOUND,
                "none: No such file");
    assert_says(dt_dir_list(in_root("none"), &(struct dt_names){0}), DT_E_NOT_FOUND,
                "No such file");
    assert_int_equal(dt_file_write(in_root("f"), "12345", 5), DT_OK);
    assert_says(dt_file_read(in_root("f"), 4, &text, &size), DT_E_DATA, "larger than the 4 bytes");
    assert_int_equal(dt_fd_open(in_root("f"), &fd), DT_OK);
    assert_int_equal(dt_fd_read_at(fd, "f", &byte, 1, 4), DT_OK);
    assert_int_equal(byte, '5');
    assert_says(dt_fd_read_at(fd, "f", &byte, 1, 5), DT_E_IO, "f ends at byte 5");
    assert_int_equal(dt_fd_close(fd, "f"), DT_OK);
    assert_says(dt_fd_close(fd, "f"), DT_E_IO, "cannot close f");
    assert_says(dt_mkdirs(in_root("f/x")), DT_E_IO, "Not a directory");
    assert_says(dt_mkdirs(in_root("f")), DT_E_IO, "a directory was expected");
}

static void messages_tell_what_to_do(void **state)
{
    (void)state;
    errno = ENOSPC;
    assert_says(dt_file_fail("write", "x"), DT_E_IO, "the disk is full");
    errno = EDQUOT;
    assert_says(dt_file_fail("write", "x"), DT_E_IO, "quota");
    errno = EROFS;
    assert_says(dt_file_fail("write", "x"), DT_E_IO, "mounted read-only");
    errno = ENOENT;
    assert_says(dt_file_fail("open", "x"), DT_E_NOT_FOUND, "cannot open x");
}

static void a_tree_goes_without_following_links(void **state)
{
    (void)state;
    assert_int_equal(dt_mkdirs(in_root("keep")), DT_OK);
    assert_int_equal(dt_file_write(in_root("keep/me"), "x", 1), DT_OK);
    assert_int_equal(dt_mkdirs(in_root("tree/a/b/c")), DT_OK);
    assert_int_equal(dt_file_write(in_root("tree/a/b/f"), "x", 1), DT_OK);
    assert_int_equal(symlink(in_root("keep"), in_root("tree/a/link")), 0);
    assert_int_equal(symlink("nowhere", in_root("tree/dangling")), 0);
    assert_int_equal(dt_remove_tree(in_root("tree")), DT_OK);
    assert_false(dt_file_exists(in_root("tree")));
    assert_true(dt_file_exists(in_root("keep/me")));
    assert_int_equal(symlink(in_root("keep"), in_root("link")), 0);
    assert_true(dt_remove_tree(in_root("link")) < 0); /* itself a link: not ours to empty */
    assert_true(dt_file_exists(in_root("keep/me")));
    assert_int_equal(dt_unlink(in_root("link")), DT_OK);
    assert_int_equal(dt_remove_tree(in_root("was never there")), DT_OK);
}

static void names_are_sorted(void **state)
{
    (void)state;
    static const char *const names[] = {"b", "a", "c", "B"};
    struct dt_names found;
    assert_int_equal(dt_mkdir(in_root("list")), DT_OK);
    for (size_t i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "list/%s", names[i]);
        assert_int_equal(dt_file_write(in_root(path), "", 0), DT_OK);
    }
    assert_int_equal(dt_dir_list(in_root("list"), &found), DT_OK);
    assert_int_equal(found.count, 4); /* no temporary file is left either */
    assert_string_equal(found.names[0], "B");
    assert_string_equal(found.names[1], "a");
    assert_string_equal(found.names[3], "c");
    dt_names_free(&found);
    assert_says(dt_mkdir(in_root("list")), DT_E_IO, "File exists");
}

static void writing_at_places(void **state)
{
    (void)state;
    int fd;
    char *text;
    size_t size;
    assert_int_equal(dt_fd_create(in_root("w"), &fd), DT_OK);
    assert_int_equal(dt_fd_reserve(fd, "w", 6), DT_OK);
    assert_int_equal(dt_fd_write_at(fd, "w", "def", 3, 3), DT_OK);
    assert_int_equal(dt_fd_write_at(fd, "w", "abc", 3, 0), DT_OK);
    assert_int_equal(dt_fd_sync(fd, "w"), DT_OK);
    assert_int_equal(dt_fd_close(fd, "w"), DT_OK);
    assert_int_equal(dt_sync_dir(root), DT_OK);
    assert_int_equal(dt_file_read(in_root("w"), 100, &text, &size), DT_OK);
    assert_string_equal(text, "abcdef");
    free(text);
    assert_says(dt_fd_write_at(-1, "w", "x", 1, 0), DT_E_IO, "cannot write w");
}

static void two_names_change_places(void **state)
{
    (void)state;
    char *text;
    size_t size;
    assert_int_equal(dt_file_write(in_root("one"), "1", 1), DT_OK);
    assert_int_equal(dt_file_write(in_root("two"), "2", 1), DT_OK);
    int rc = dt_rename_exchange(in_root("one"), in_root("two"));
    if (rc == DT_E_UNSUPPORTED)
        skip();
    assert_int_equal(rc, DT_OK);
    assert_int_equal(dt_file_read(in_root("one"), 10, &text, &size), DT_OK);
    assert_string_equal(text, "2");
    free(text);
    assert_int_equal(dt_rename(in_root("one"), in_root("two")), DT_OK);
    assert_says(dt_rename(in_root("one"), in_root("two")), DT_E_NOT_FOUND, "cannot rename");
}

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/dt_file_XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dt_remove_tree(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_join_and_part),
        cmocka_unit_test(reading_gives_all_bytes),
        cmocka_unit_test(what_cannot_be_read_is_refused),
        cmocka_unit_test(messages_tell_what_to_do),
        cmocka_unit_test(a_tree_goes_without_following_links),
        cmocka_unit_test(names_are_sorted),
        cmocka_unit_test(writing_at_places),
        cmocka_unit_test(two_names_change_places),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
