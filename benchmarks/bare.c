/* What a disk gives: threads that do nothing but pread. Compiled when the benchmark runs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#define PAGE 4096
#define MOST 256

typedef struct {
    int fd;
    int direct;
    size_t size;                  /* bytes of a read */
    uint64_t count;               /* reads */
    const uint64_t *offsets;      /* of each; NULL: one after the other */
    uint64_t next, bytes, failed; /* shared by the threads */
} Job;

static void *work(void *argument) {
    Job *job = argument;
    const size_t room = (job->size + 2 * PAGE) / PAGE * PAGE;
    void *to = NULL;
    if (posix_memalign(&to, PAGE, room) != 0) return NULL;
    for (;;) {
        const uint64_t i = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (i >= job->count) break;
        uint64_t begin = job->offsets != NULL ? job->offsets[i] : i * job->size, end = begin + job->size;
        if (job->direct) {
            begin = begin / PAGE * PAGE;
            end = (end + PAGE - 1) / PAGE * PAGE;
        }
        const ssize_t got = pread(job->fd, to, end - begin, (off_t)begin);
        if (got < 0)
            __atomic_fetch_add(&job->failed, 1, __ATOMIC_RELAXED);
        else
            __atomic_fetch_add(&job->bytes, (uint64_t)got, __ATOMIC_RELAXED);
    }
    free(to);
    return NULL;
}

/* Reads `count` pieces of a file on some threads; returns the bytes that came, or -1. */
int64_t bare_reads(const char *path, int threads, size_t size, uint64_t count, const uint64_t *offsets, int direct) {
    Job job = {-1, direct, size, count, offsets, 0, 0, 0};
    pthread_t ids[MOST];
    int started = 0;
    job.fd = open(path, O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0));
    if (job.fd < 0) return -1;
    if (!direct) posix_fadvise(job.fd, 0, 0, POSIX_FADV_RANDOM);
    while (started < threads && started < MOST && pthread_create(&ids[started], NULL, work, &job) == 0) ++started;
    for (int i = 0; i < started; ++i) pthread_join(ids[i], NULL);
    close(job.fd);
    return job.failed != 0 || started == 0 ? -1 : (int64_t)job.bytes;
}
