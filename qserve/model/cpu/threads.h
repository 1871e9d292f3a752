/* Work shared among threads: OpenMP's, which torch has loaded, or those of a pool of our own. */

#ifndef QSERVE_THREADS_H
#define QSERVE_THREADS_H

#include <stddef.h>

/* Task `index` of the work that `shared` describes. */
typedef void (*task)(void *shared, long index);

/* Tasks 0 to num - 1, each once, in any order, by any thread; returns when all are done. */
void for_each(long num, task run, void *shared);

/* At least `bytes` of memory that belong to this thread until its next call with the same `slot`; NULL: there is none. */
enum { SCRATCH_SLOTS = 6 };
void *scratch(int slot, size_t bytes);

/* How many threads `for_each` may use. */
long num_threads(void);

#endif
