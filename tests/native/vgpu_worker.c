/* A process of a vGPU container, as far as its region files go: it maps, locks and writes them as the vGPU library does
 * (vgpu-manager, library/include/hook.h and library/src/loader.c), so that tests prove offsets and locks between
 * languages. It takes commands from its arguments, or else one a line from standard input, and answers each with one
 * line.  Usage: vgpu_worker FOLDER [COMMAND...], where FOLDER holds sm_node/ and vmem_node/. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEVICES 16
#define RECORDS 1024
#define LINE 128

typedef struct { int32_t pid; uint64_t used; } record_t;
typedef struct { record_t processes[RECORDS]; uint32_t count; uint8_t lock_byte; } ledger_t;
typedef struct { uint32_t magic, version, size, devices; } header_t;
typedef struct { header_t h; uint8_t pad[LINE - sizeof(header_t)]; ledger_t devices[DEVICES]; } vmem_t;
typedef struct {
  int64_t cur, total, last_refill_ns, share, sample_published_ns;
  int32_t up_limit, is_cnt, avg_sys_free, pre_external, md_cooldown, debounced, streak, lost, throttled;
  int32_t s_user, s_sys, s_sys_processes, s_external, leader_pid;
  int64_t sample_interval_ns;
} __attribute__((aligned(LINE))) sm_device_t;
typedef struct { header_t h; uint8_t pad[LINE - sizeof(header_t)]; sm_device_t devices[DEVICES]; } sm_t;

_Static_assert(sizeof(vmem_t) == 262400 && sizeof(sm_t) == 2176, "region sizes are an ABI");

typedef struct {
  const char *dir, *file;
  size_t file_size, region_size;
  off_t lock_start, lock_length;
  uint32_t magic, version;
  int fd;
  header_t *map;
  struct stat opened;
} region_t;

static region_t vmem = {.dir = "vmem_node", .file = "vmem_node.config", .file_size = 327680, .region_size = sizeof(vmem_t),
                        .lock_length = 1, .magic = 0x564D4E44, .version = 1, .fd = -1};
static region_t sm = {.dir = "sm_node", .file = "sm_node.config", .file_size = 8192, .region_size = sizeof(sm_t),
                      .lock_length = 0, .magic = 0x534D4E44, .version = 3, .fd = -1};
static const char *folder;
static int lock_fd = -1, sampling_fd = -1;

static int lock(int fd, int how, short type, off_t start, off_t length) {
  struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};
  int result;
  do result = fcntl(fd, how, &l); while (result < 0 && errno == EINTR);
  return result;
}

static off_t lock_offset(int device) {
  return (off_t)(offsetof(vmem_t, devices) + device * sizeof(ledger_t) + offsetof(ledger_t, lock_byte));
}

static void path_of(const region_t *r, char *out) { snprintf(out, 4096, "%s/%s/%s", folder, r->dir, r->file); }

static int open_region(region_t *r) {
  char path[4096];
  path_of(r, path);
  r->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  return r->fd < 0 || fstat(r->fd, &r->opened) < 0 ? -1 : 0;
}

static int map_region(region_t *r) {
  struct stat s;
  lock(r->fd, F_OFD_SETLKW, F_WRLCK, r->lock_start, r->lock_length);
  if (fstat(r->fd, &s) == 0 && (size_t)s.st_size != r->file_size && ftruncate(r->fd, (off_t)r->file_size) < 0) return -1;
  r->map = mmap(NULL, r->file_size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, 0);
  if (r->map == MAP_FAILED) return -1;
  header_t *h = r->map;
  if (__atomic_load_n(&h->magic, __ATOMIC_ACQUIRE) != r->magic || h->version != r->version ||
      h->size != r->region_size || h->devices != DEVICES) {
    memset(h, 0, r->file_size);
    h->devices = DEVICES;
    h->size = (uint32_t)r->region_size;
    h->version = r->version;
    __atomic_store_n(&h->magic, r->magic, __ATOMIC_RELEASE);
  }
  lock(r->fd, F_OFD_SETLKW, F_UNLCK, r->lock_start, r->lock_length);
  close(r->fd);
  r->fd = -1;
  return 0;
}

static int same(const region_t *r) {
  char path[4096];
  struct stat s;
  path_of(r, path);
  return stat(path, &s) == 0 && s.st_ino == r->opened.st_ino && s.st_dev == r->opened.st_dev;
}

static int device_lock(int device, short type) {
  char path[4096];
  if (lock_fd < 0) {
    path_of(&vmem, path);
    lock_fd = open(path, O_RDWR | O_CLOEXEC);
  }
  return lock(lock_fd, F_OFD_SETLKW, type, lock_offset(device), 1);
}

/* Adds `bytes` (maybe negative) to this process's record; a record of zero bytes is removed. Returns the new amount. */
static uint64_t charge(int device, int64_t bytes) {
  ledger_t *d = &((vmem_t *)vmem.map)->devices[device];
  int32_t pid = (int32_t)getpid();
  uint64_t left = 0;
  device_lock(device, F_WRLCK);
  uint32_t i = 0;
  while (i < d->count && d->processes[i].pid != pid) i++;
  if (i == d->count && bytes > 0 && d->count < RECORDS) {
    d->processes[i] = (record_t){pid, 0};
    d->count++;
  }
  if (i < d->count) {
    left = d->processes[i].used += (uint64_t)bytes;
    if (left == 0) {
      d->processes[i] = d->processes[d->count - 1];
      memset(&d->processes[d->count - 1], 0, sizeof(record_t));
      d->count--;
    }
  }
  device_lock(device, F_UNLCK);
  return left;
}

/* What to add to `held` bytes: some more, some less, or all of it away. */
static int64_t step(uint64_t held, unsigned *seed) {
  int64_t amount = 1 + rand_r(seed) % 4096;
  if (held == 0 || rand_r(seed) % 2) return amount;
  return rand_r(seed) % 3 && (uint64_t)amount < held ? -amount : -(int64_t)held;
}

/* Charges and frees on the first `devices` at random until a byte arrives; then prints what it holds of each. */
static void churn(int devices, unsigned seed) {
  uint64_t held[DEVICES] = {0};
  int flags = fcntl(0, F_GETFL);
  char c;
  fcntl(0, F_SETFL, flags | O_NONBLOCK);
  while (read(0, &c, 1) != 1) {
    int d = rand_r(&seed) % devices;
    held[d] = charge(d, step(held[d], &seed));
    if (rand_r(&seed) % 16 == 0) usleep(rand_r(&seed) % 2000);
  }
  fcntl(0, F_SETFL, flags);
  printf("held");
  for (int d = 0; d < devices; d++) printf(" %llu", (unsigned long long)held[d]);
  printf("\n");
}

/* A supervisor whose children come and go: each maps both regions, and must still be on the path's inode a while later. */
static int supervise(int children) {
  int orphans = 0;
  for (int n = 0; n < children; n++) {
    pid_t child = fork();
    if (child == 0) {
      if (open_region(&vmem) || open_region(&sm)) _exit(2);
      usleep(rand() % 3000);
      if (map_region(&vmem) || map_region(&sm)) _exit(2);
      usleep(5000);
      _exit(same(&vmem) && same(&sm) ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    orphans += status != 0;
    usleep(rand() % 5000);
  }
  return orphans;
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void layout(void) {
  printf("vmem %zu %zu %zu %zu sm %zu %zu locks", offsetof(vmem_t, devices), sizeof(ledger_t), offsetof(ledger_t, count),
         sizeof(vmem_t), sizeof(sm_device_t), sizeof(sm_t));
  for (int d = 0; d < DEVICES; d++) printf(" %lld", (long long)lock_offset(d));
  printf("\n");
}

static void run(char *line) {
  long long a = 0, b = 0;
  char word[32] = "";
  sscanf(line, "%31s %lld %lld", word, &a, &b);
  int device = (int)a;
  char path[4096];
  if (!strcmp(word, "layout")) layout();
  else if (!strcmp(word, "open")) puts(open_region(&vmem) || open_region(&sm) ? strerror(errno) : "ok");
  else if (!strcmp(word, "mapopened")) puts(map_region(&vmem) || map_region(&sm) ? strerror(errno) : "ok");
  else if (!strcmp(word, "map"))
    puts(open_region(&vmem) || open_region(&sm) || map_region(&vmem) || map_region(&sm) ? strerror(errno) : "ok");
  else if (!strcmp(word, "same")) puts(same(&vmem) && same(&sm) ? "same" : "orphan");
  else if (!strcmp(word, "charge")) printf("%llu\n", (unsigned long long)charge(device, b));
  else if (!strcmp(word, "lock")) puts(device_lock(device, F_WRLCK) ? strerror(errno) : "ok");
  else if (!strcmp(word, "unlock")) puts(device_lock(device, F_UNLCK) ? strerror(errno) : "ok");
  else if (!strcmp(word, "try")) {
    path_of(&vmem, path);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    puts(lock(fd, F_OFD_SETLK, F_WRLCK, a, b) == 0 ? "granted" : "denied");
    close(fd);
  } else if (!strcmp(word, "own")) {
    snprintf(path, sizeof path, "%s/sm_node/sm_node.lock", folder);
    if (sampling_fd < 0) sampling_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    puts(lock(sampling_fd, F_OFD_SETLK, F_WRLCK, a, 1) == 0 ? "ok" : "taken");
  } else if (!strcmp(word, "refill")) {
    sm_device_t *d = &((sm_t *)sm.map)->devices[device];
    d->cur = 1000; d->total = 2000; d->up_limit = (int32_t)b; d->leader_pid = (int32_t)getpid();
    d->s_user = (int32_t)b - 1; d->sample_interval_ns = 100000000;
    __atomic_store_n(&d->last_refill_ns, now_ns(), __ATOMIC_RELEASE);
    puts("ok");
  } else if (!strcmp(word, "churn")) churn(device, (unsigned)b);
  else if (!strcmp(word, "supervise")) printf("orphans %d\n", supervise(device));
  else if (!strcmp(word, "pid")) printf("%d\n", (int)getpid());
  else if (!strcmp(word, "sleep")) usleep((useconds_t)a * 1000), puts("ok");
  else if (!strcmp(word, "forever")) for (;;) pause();
  else printf("unknown command %s\n", word);
  fflush(stdout);
}

int main(int argc, char **argv) {
  char line[256];
  if (argc < 2) return fprintf(stderr, "usage: vgpu_worker FOLDER [COMMAND...]\n"), 2;
  folder = argv[1];
  setvbuf(stdin, NULL, _IONBF, 0); /* churn reads the descriptor itself */
  srand((unsigned)getpid());
  for (int n = 2; n < argc; n++) run(argv[n]);
  while (argc == 2 && fgets(line, sizeof line, stdin)) run(line);
  return 0;
}
