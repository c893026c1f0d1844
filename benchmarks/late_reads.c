/* LD_PRELOAD: every read of a file below $LATE_FOLDER takes $LATE_US microseconds longer, as over a network. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void wait_for(int fd)
{
    const char *folder = getenv("LATE_FOLDER"), *late = getenv("LATE_US");
    char link[64], path[4096];
    ssize_t length;

    if (!folder || !late)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length > 0 && !strncmp(path, folder, strlen(folder)))
        usleep((useconds_t)atoi(late));
}

#define LATE(name, parameters, arguments)                        \
    ssize_t name parameters                                      \
    {                                                            \
        static ssize_t(*plain) parameters;                       \
        if (!plain)                                              \
            *(void **)&plain = dlsym(RTLD_NEXT, #name);          \
        wait_for(fd);                                            \
        return plain arguments;                                  \
    }

LATE(read, (int fd, void *buffer, size_t size), (fd, buffer, size))
LATE(pread, (int fd, void *buffer, size_t size, off_t at), (fd, buffer, size, at))
LATE(pread64, (int fd, void *buffer, size_t size, off_t at), (fd, buffer, size, at))
