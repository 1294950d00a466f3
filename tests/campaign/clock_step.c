/* CLOCK_REALTIME with an offset that another process may change at any time, as an administrator or NTP steps a clock.

   LD_PRELOAD=clock_step.so LEYDEN_CLOCK=FILE, where FILE holds the offset in seconds, as a 64-bit integer. CLOCK_MONOTONIC
   is left alone. Waits until a time of the stepped clock end when that clock says so at their beginning. libfaketime 0.9.10
   would do, but that clock_nanosleep is EINVAL there if CLOCK_MONOTONIC is not to be stepped as well. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *name = getenv("LEYDEN_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *memory = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED) offset = memory;
}

static int64_t stepped(void) { return offset ? *offset : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += stepped();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}

/* A time of the stepped clock for the kernel's; times of CLOCK_MONOTONIC are below a billion seconds. */
static struct timespec for_kernel(const struct timespec *until) {
    struct timespec changed = *until;
    if (changed.tv_sec > 1000000000) changed.tv_sec -= stepped();
    return changed;
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict t) {
    static int (*real)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    struct timespec until = for_kernel(t);
    return real(c, m, &until);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict t) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec until = for_kernel(t);
    return real(semaphore, &until);
}
