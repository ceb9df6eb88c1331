/* Lines of a text file, plain or compressed with gzip (told by its content, not by its name). */
#ifndef DT_DATA_LINES_H
#define DT_DATA_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_lines;
int dt_lines_open(const char *path, struct dt_lines **out);
void dt_lines_close(struct dt_lines *l);
/* The next line without its end ("\n" or "\r\n") and, for the first, without a byte order mark;
 * valid until the next call. *line is NULL after the last one. A line may have up to 1 GiB. */
int dt_lines_next(struct dt_lines *l, const char **line, size_t *bytes, int64_t *number);
/* Everything that is left, as it stands. */
int dt_lines_rest(struct dt_lines *l, const char **text, size_t *bytes);
size_t
dt_lines_position(const struct dt_lines *l); /* bytes of the file read so far, for progress */

#endif
