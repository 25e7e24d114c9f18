/* The bare system calls of an occupancy scan, for a benchmark to be compared with: every process, every open file, and
 * the device number behind it.  Usage: bare_scan MAJOR MINOR; prints the CPU time in ms, and how many open files have
 * that number. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

static unsigned wanted_major, wanted_minor;

static int is_wanted(int folder, const char *name) {
    struct statx seen;
    return statx(folder, name, AT_STATX_DONT_SYNC, STATX_TYPE | STATX_MODE | STATX_UID, &seen) == 0 &&
           S_ISCHR(seen.stx_mode) && seen.stx_rdev_major == wanted_major && seen.stx_rdev_minor == wanted_minor;
}

static long count_in(const char *pid) {
    char path[sizeof "/proc/4194304/fd"];
    struct dirent *entry;
    long found = 0;
    snprintf(path, sizeof path, "/proc/%.7s/fd", pid);
    int folder = open(path, O_RDONLY | O_DIRECTORY);
    DIR *listed = folder < 0 ? NULL : fdopendir(folder);
    if (listed == NULL) return 0;
    while ((entry = readdir(listed)) != NULL)
        if (entry->d_name[0] != '.') found += is_wanted(folder, entry->d_name);
    closedir(listed);
    return found;
}

int main(int count, char **arguments) {
    struct timespec used;
    struct dirent *entry;
    long found = 0;
    DIR *proc = opendir("/proc");
    if (count != 3 || proc == NULL) return 2;
    wanted_major = strtoul(arguments[1], NULL, 10);
    wanted_minor = strtoul(arguments[2], NULL, 10);
    while ((entry = readdir(proc)) != NULL)
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9') found += count_in(entry->d_name);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    printf("%.1f %ld\n", used.tv_sec * 1e3 + used.tv_nsec / 1e6, found);
    return 0;
}
