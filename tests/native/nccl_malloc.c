/* An allocator that is preloaded, as jemalloc is: memory of its own, and the end of the process if
 * it gets memory of another one back. It frees nothing. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const size_t kBytes = (size_t)1 << 34; /* reserved, not used */
static char *first;
static size_t used;

void *memalign(size_t alignment, size_t size) {
  if (first == NULL) { /* the loader's, before there are threads */
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    first = mmap(NULL, kBytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (first == MAP_FAILED) abort();
  }
  if (alignment < 16) alignment = 16;
  size_t at = __atomic_fetch_add(&used, size + 2 * alignment, __ATOMIC_RELAXED);
  uintptr_t place = ((uintptr_t)first + at + 2 * alignment - 1) & ~(uintptr_t)(alignment - 1);
  if (at + size + 2 * alignment > kBytes) abort();
  ((size_t *)place)[-1] = size;
  return (void *)place;
}
void *malloc(size_t size) { return memalign(16, size); }
void *calloc(size_t count, size_t size) { return malloc(count * size); } /* fresh pages are zero */
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **out, size_t alignment, size_t size) {
  *out = memalign(alignment, size);
  return 0;
}
void free(void *memory) {
  if (memory != NULL && ((char *)memory < first || (char *)memory >= first + kBytes)) abort();
}
void *realloc(void *memory, size_t size) {
  void *made = malloc(size);
  free(memory);
  if (memory == NULL) return made;
  size_t before = ((size_t *)memory)[-1];
  return memcpy(made, memory, before < size ? before : size);
}
