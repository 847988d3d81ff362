/* Shifts CLOCK_REALTIME, and nothing else, for the process that is started with it in LD_PRELOAD.
 *
 * The offset is a signed 64-bit count of nanoseconds at the start of the file that SINGLEJOB_TEST_CLOCK
 * names. The file is mapped, so whoever writes it steps the clock of every process at once. Monotonic
 * clocks, sleeps and waits stay true: waits that take an absolute CLOCK_REALTIME time are shifted back.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
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

static const volatile int64_t *shared_offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("SINGLEJOB_TEST_CLOCK");
    if (!path)
        return;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        shared_offset = page;
}

static int64_t offset_ns(void) { return shared_offset ? *shared_offset : 0; }

static void shift(struct timespec *ts, int64_t by) {
    int64_t ns = (int64_t)ts->tv_nsec + by % 1000000000;
    ts->tv_sec += by / 1000000000;
    if (ns < 0) {
        ns += 1000000000;
        ts->tv_sec -= 1;
    } else if (ns >= 1000000000) {
        ns -= 1000000000;
        ts->tv_sec += 1;
    }
    ts->tv_nsec = ns;
}

static int is_wall(clockid_t clock) { return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE; }

static int true_gettime(clockid_t clock, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return real ? real(clock, ts) : (int)syscall(SYS_clock_gettime, clock, ts);
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    int result = true_gettime(clock, ts);
    if (result == 0 && is_wall(clock))
        shift(ts, offset_ns());
    return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    struct timespec ts;
    if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
        return -1;
    if (tv) {
        tv->tv_sec = ts.tv_sec;
        tv->tv_usec = ts.tv_nsec / 1000;
    }
    return 0;
}

time_t time(time_t *out) {
    struct timespec ts;
    if (clock_gettime(CLOCK_REALTIME, &ts) != 0)
        return (time_t)-1;
    if (out)
        *out = ts.tv_sec;
    return ts.tv_sec;
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real)
        real = (int (*)(sem_t *, const struct timespec *))dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec moved = *until;
    shift(&moved, -offset_ns());
    return real(sem, &moved);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real)
        real = (int (*)(pthread_mutex_t *, const struct timespec *))dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec moved = *until;
    shift(&moved, -offset_ns());
    return real(mutex, &moved);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wait, struct timespec *rest) {
    static int (*real)(clockid_t, int, const struct timespec *, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, int, const struct timespec *, struct timespec *))dlsym(RTLD_NEXT,
                                                                                         "clock_nanosleep");
    struct timespec moved = *wait;
    if ((flags & TIMER_ABSTIME) && is_wall(clock))
        shift(&moved, -offset_ns());
    return real(clock, flags, &moved, rest);
}
