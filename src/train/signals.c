/* Signals that ask for an orderly end. */
#include "train/control.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t first;    /* number of the first signal that came */
static volatile sig_atomic_t stepping; /* there is something to save */

static void leave(const char *words)
{
    ssize_t ignored = write(STDERR_FILENO, words, strlen(words));
    (void)ignored;
    _exit(75);
}

/* In the handler, because code that prepares data looks nowhere for signals. What a start leaves
 * half done when it is left in the middle, the next one cleans up, as after a SIGKILL. */
static void on_signal(int number)
{
    bool again = first != 0;
    if (!again)
        first = number;
    if (again)
        leave("\nductile: second signal, leaving now; the newest checkpoint stands\n");
    if (!stepping)
        leave(
            number == SIGTERM
                ? "\nductile: stopped by SIGTERM before the first step; the same command goes on\n"
            : number == SIGINT
                ? "\nductile: stopped by SIGINT before the first step; the same command goes on\n"
                : "\nductile: stopped by SIGUSR1 before the first step; the same command goes "
                  "on\n");
}

void dt_signals_install(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

void dt_signals_steps_begin(void)
{
    stepping = 1;
}

bool dt_signals_stop_asked(void)
{
    return first != 0;
}

const char *dt_signals_name(void)
{
    return first == SIGTERM   ? "SIGTERM"
           : first == SIGINT  ? "SIGINT"
           : first == SIGUSR1 ? "SIGUSR1"
                              : NULL;
}
