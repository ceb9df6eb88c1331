#include "cli/cli.h"

int main(int argc, char **argv)
{
    return dt_cli_main(argc, argv);
}
