/* Ductile inside another program: train a run, then ask how good the model is.
 *
 *     make                       (PKG_CONFIG_PATH says where ductile.pc is, if it is not in a usual
 * place)
 *     ./embed RUN.yaml OUTPUT DATA [section.key=value ...]
 *
 * OUTPUT is the run's directory, as RUN.yaml or an override names it. */
#include <ductile/ductile.h>

#include <stdio.h>

static int fail(int code)
{
    fprintf(stderr, "embed: %s\n", ductile_error_message());
    return ductile_error_exit_code(code);
}

int main(int argc, char **argv)
{
    struct ductile_evaluation e;
    if (argc < 4) {
        fprintf(stderr, "usage: embed RUN.yaml OUTPUT DATA [section.key=value ...]\n");
        return 2;
    }
    ductile_set_quiet(1);
    int rc = ductile_train(argv[1], (const char *const *)(argv + 4), argc - 4);
    if (rc == 0)
        rc = ductile_evaluate(argv[2], argv[3], NULL, &e);
    if (rc < 0)
        return fail(rc);
    printf("ductile %s: loss %.4f over %lld tokens\n", ductile_version(), e.loss,
           (long long)e.tokens);
    return 0;
}
