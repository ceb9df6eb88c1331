/* Signals that ask for an orderly end. */
#include "train/control.h"

#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static volatile sig_atomic_t first; /* number of the first signal that came */

static void on_signal(int number)
{
    static const char again[] = "\nductile: second signal, leaving now; the newest checkpoint stands\n";
    if (first) {
        ssize_t ignored = write(STDERR_FILENO, again, sizeof again - 1);
        (void)ignored;
        _exit(75);
    }
    first = number;
}

void dt_signals_install(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
}

bool dt_signals_stop_asked(void)
{
    return first != 0;
}

const char *dt_signals_name(void)
{
    return first == SIGTERM ? "SIGTERM" : first == SIGINT ? "SIGINT" : first == SIGUSR1 ? "SIGUSR1" : NULL;
}
