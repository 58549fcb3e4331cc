/* A librknnrt.so for tests: the documented interface of INT8 matrix products, computed on the CPU.
 *
 * It keeps the contract of an RK3588: layouts, alignment, one core per context, error codes and messages, two file
 * descriptors per context and one per buffer, and a crash instead of an error when there are no more of them.
 *
 * STAND_IN_VERSION chooses the version and with it the layout of the description of a product. RKNN_STAND_IN_FAULT
 * in the environment chooses what goes wrong:
 *
 *   zeros, wrong-core-2, off-by-one   products that are not the product
 *   create-fails, create-refuses      rknn_matmul_create returns -1 or -5
 *   run-times-out, core-refused       rknn_matmul_run returns -2, rknn_matmul_set_core_mask -1
 *   no-memory                         rknn_create_mem returns NULL
 *   odd-shape                         the operands have other sizes
 *   segfault, abort, killed, exit, exit-quietly   the process ends inside rknn_matmul_run
 *   hang, hang-noisily, orphan        rknn_matmul_run never returns; an orphan keeps the streams open
 *   garbage, flood, unknown-event     something else writes to the descriptor of the events
 *   crash-at-exit                     everything works, and then the process crashes
 *
 * RKNN_STAND_IN_SAYS is printed by abort.
 */
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef STAND_IN_VERSION
#define STAND_IN_VERSION "2.3.2"
#endif
#ifndef STAND_IN_GENERATION
#define STAND_IN_GENERATION 2
#endif

#define API __attribute__((visibility("default")))
#define MAX_CONTEXTS 1024
#define INT8_INT8_INT32 2

API const char stand_in_version[] = "librknnrt version: " STAND_IN_VERSION " (0123456789@2025-01-01T00:00:00)";

typedef struct {
    void *virt;
    uint64_t physical;
    int32_t fd;
    int32_t offset;
    uint32_t size;
    uint32_t flags;
    void *private_data;
} tensor_memory;

typedef struct {
    char name[256];
    uint32_t dimension_count;
    uint32_t dimensions[16];
    uint32_t size;
    int32_t type;
} tensor_attributes;

typedef struct {
    tensor_attributes a;
    tensor_attributes b;
    tensor_attributes c;
} operand_attributes;

#if STAND_IN_GENERATION == 2
typedef struct {
    int32_t m;
    int32_t k;
    int32_t n;
    int32_t type;
    int16_t b_layout;
    int16_t b_quantisation;
    int16_t ac_layout;
    int16_t ac_quantisation;
    int32_t domain;
    int16_t group_size;
    int8_t reserved[34];
} product;
#else
typedef struct {
    int32_t m;
    int32_t k;
    int32_t n;
    int32_t type;
    int32_t b_layout;
    int32_t ac_layout;
} product;
#endif

typedef struct {
    int used;
    product what;
    int core;
    int files[2];
    tensor_memory *a;
    tensor_memory *c;
    int8_t *b; /* row by row, as it was when it was set */
} context;

static context contexts[MAX_CONTEXTS];
static int open_files;

static const char *fault(void)
{
    const char *name = getenv("RKNN_STAND_IN_FAULT");
    return name == NULL ? "" : name;
}

static int fault_is(const char *name)
{
    return strcmp(fault(), name) == 0;
}

static int take_file(void)
{
    int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        raise(SIGSEGV); /* as librknnrt 1.5.2 does */
    }
    open_files++;
    return file;
}

static void give_back(int file)
{
    close(file);
    open_files--;
}

static context *find(uint64_t handle)
{
    if (handle == 0 || handle > MAX_CONTEXTS || !contexts[handle - 1].used) {
        return NULL;
    }
    return &contexts[handle - 1];
}

/* Where an element of B lies. */
static size_t b_index(const product *what, int32_t k, int32_t n)
{
    if (what->b_layout == 0) {
        return (size_t)k * (size_t)what->n + (size_t)n;
    }
    return ((((size_t)n / 32) * ((size_t)what->k / 32) + (size_t)k / 32) * 32 + (size_t)n % 32) * 32 + (size_t)k % 32;
}

/* Where an element of A lies. */
static size_t a_index(const product *what, int32_t m, int32_t k)
{
    if (what->ac_layout == 0) {
        return (size_t)m * (size_t)what->k + (size_t)k;
    }
    return ((size_t)k / 16) * (size_t)what->m * 16 + (size_t)m * 16 + (size_t)k % 16;
}

/* Where an element of C lies. */
static size_t c_index(const product *what, int32_t m, int32_t n)
{
    if (what->ac_layout == 0) {
        return (size_t)m * (size_t)what->n + (size_t)n;
    }
    return ((size_t)n / 4) * (size_t)what->m * 4 + (size_t)m * 4 + (size_t)n % 4;
}

static void describe(tensor_attributes *attributes, const char *name, int32_t rows, int32_t columns, uint32_t bytes)
{
    memset(attributes, 0, sizeof *attributes);
    snprintf(attributes->name, sizeof attributes->name, "%s", name);
    attributes->dimension_count = 2;
    attributes->dimensions[0] = (uint32_t)rows;
    attributes->dimensions[1] = (uint32_t)columns;
    attributes->size = (uint32_t)rows * (uint32_t)columns * bytes;
}

static int refuse(const char *text)
{
    fprintf(stderr, "E RKNN: %s\n", text);
    return -5;
}

API int rknn_matmul_create(uint64_t *handle, product *what, operand_attributes *operands)
{
    if (fault_is("create-fails")) {
        fprintf(stderr, "E RKNN: failed to open rknpu module, need to insmod rknpu dirver!\n");
        return -1;
    }
    if (fault_is("create-refuses") || what->type != INT8_INT8_INT32) {
        return refuse("unsupported matmul dtype in this platform");
    }
    if (what->m <= 0 || what->k <= 0 || what->n <= 0) {
        return refuse("matmul M, K and N must be positive");
    }
    if (what->k % 32 != 0) {
        return refuse("matmul K must be align with 32!");
    }
    if (what->n % 32 != 0) {
        return refuse("matmul N must be align with 32!");
    }
    if (what->k > (STAND_IN_GENERATION == 2 ? 10240 : 4096)) {
        return refuse("matmul K > limit");
    }
    if (what->b_layout < 0 || what->b_layout > 1 || what->ac_layout < 0 || what->ac_layout > 1) {
        return refuse("matmul layout is not supported");
    }
#if STAND_IN_GENERATION == 2
    if (what->domain < 0 || what->domain > 15) {
        return refuse("iommu domain id must be 0 to 15");
    }
#endif
    for (uint64_t index = 0; index < MAX_CONTEXTS; index++) {
        context *made = &contexts[index];
        if (made->used) {
            continue;
        }
        *made = (context){.used = 1, .what = *what, .core = 1};
        made->files[0] = take_file();
        made->files[1] = take_file();
        describe(&operands->a, "A", what->m, what->k, 1);
        describe(&operands->b, "B", what->k, what->n, 1);
        describe(&operands->c, "C", what->m, what->n, 4);
        if (fault_is("odd-shape")) {
            operands->c.size /= 2;
        }
        *handle = index + 1;
        return 0;
    }
    return -1;
}

API int rknn_matmul_set_core_mask(uint64_t handle, int mask)
{
    context *made = find(handle);
    if (made == NULL) {
        return -7;
    }
    if ((mask != 1 && mask != 2 && mask != 4) || (mask == 4 && fault_is("core-refused"))) {
        fprintf(stderr, "E RKNN: Not support core mask: %d, fallback to single core auto mode\n", mask);
        return -1;
    }
    made->core = mask;
    return 0;
}

API tensor_memory *rknn_create_mem(uint64_t handle, uint32_t size)
{
    if (find(handle) == NULL || fault_is("no-memory")) {
        fprintf(stderr, "E RKNN: failed to allocate handle, ret: -1, errno: 12, errstr: Cannot allocate memory\n");
        return NULL;
    }
    tensor_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return NULL;
    }
    memory->virt = malloc(size);
    if (memory->virt == NULL) {
        free(memory);
        return NULL;
    }
    memset(memory->virt, 0x5a, size); /* whatever was there before */
    memory->size = size;
    memory->fd = take_file();
    memory->private_data = memory;
    return memory;
}

API int rknn_destroy_mem(uint64_t handle, tensor_memory *memory)
{
    (void)handle;
    if (memory == NULL || memory->private_data != memory) {
        return -5;
    }
    give_back(memory->fd);
    free(memory->virt);
    free(memory);
    return 0;
}

API tensor_memory *rknn_create_mem_from_fd(uint64_t handle, int32_t file, void *virt, uint32_t size, int32_t offset)
{
    (void)handle;
    (void)file;
    (void)virt;
    (void)size;
    (void)offset;
    return NULL;
}

API int rknn_matmul_set_io_mem(uint64_t handle, tensor_memory *memory, tensor_attributes *attributes)
{
    context *made = find(handle);
    if (made == NULL) {
        return -7;
    }
    if (memory == NULL || memory->private_data != memory || memory->size < attributes->size) {
        return refuse("memory is smaller than the operand");
    }
    if (strcmp(attributes->name, "A") == 0) {
        made->a = memory;
    } else if (strcmp(attributes->name, "C") == 0) {
        made->c = memory;
    } else if (strcmp(attributes->name, "B") == 0) {
        const product *what = &made->what;
        free(made->b);
        made->b = malloc((size_t)what->k * (size_t)what->n);
        if (made->b == NULL) {
            return -4;
        }
        for (int32_t k = 0; k < what->k; k++) {
            for (int32_t n = 0; n < what->n; n++) {
                made->b[(size_t)k * (size_t)what->n + (size_t)n] = ((int8_t *)memory->virt)[b_index(what, k, n)];
            }
        }
    } else {
        return refuse("no such operand");
    }
    return 0;
}

/* Writes to every descriptor that may be the one of the events. */
static void write_everywhere(const char *text, int times)
{
    for (int file = 3; file < 4096; file++) { /* the caller may have many files open */
        struct stat found;
        if (fstat(file, &found) != 0 || !S_ISFIFO(found.st_mode)) {
            continue;
        }
        for (int count = 0; count < times; count++) {
            if (write(file, text, strlen(text)) < 0) {
                break;
            }
        }
    }
}

/* Makes the file RKNN_STAND_IN_MARK: from now on nothing more will come. */
static void leave_mark(void)
{
    const char *path = getenv("RKNN_STAND_IN_MARK");
    if (path != NULL) {
        close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    }
}

static void end_badly(void)
{
    const char *name = fault();
    if (strcmp(name, "segfault") == 0) {
        raise(SIGSEGV);
    } else if (strcmp(name, "abort") == 0) {
        printf("{\"event\": \"done\"}\nnoise on stdout\n");
        fflush(stdout);
        const char *says = getenv("RKNN_STAND_IN_SAYS");
        fprintf(stderr, "terminate called\x1b[31m after throwing %s\n", says == NULL ? "" : says);
        abort();
    } else if (strcmp(name, "killed") == 0) {
        raise(SIGKILL);
    } else if (strcmp(name, "exit") == 0) {
        _exit(7);
    } else if (strcmp(name, "exit-quietly") == 0) {
        _exit(0);
    } else if (strcmp(name, "hang") == 0) {
        fprintf(stderr, "E RKNN: failed to wait job\n");
        leave_mark();
        for (;;) {
            pause();
        }
    } else if (strcmp(name, "hang-noisily") == 0) {
        leave_mark();
        for (;;) {
            fprintf(stderr, "still trying\n");
        }
    } else if (strcmp(name, "orphan") == 0) {
        if (fork() != 0) {
            raise(SIGSEGV);
        }
        for (;;) {
            pause();
        }
    } else if (strcmp(name, "garbage") == 0) {
        write_everywhere("\xff{not json\n", 1);
    } else if (strcmp(name, "flood") == 0) {
        write_everywhere("0123456789abcdef0123456789abcdef", 4096);
    } else if (strcmp(name, "unknown-event") == 0) {
        write_everywhere("{\"event\": \"surprise\"}\n", 1);
    }
}

API int rknn_matmul_run(uint64_t handle)
{
    context *made = find(handle);
    if (made == NULL) {
        return -7;
    }
    if (made->a == NULL || made->b == NULL || made->c == NULL) {
        return -8;
    }
    end_badly();
    if (fault_is("run-times-out")) {
        fprintf(stderr, "E RKNN: failed to submit!, op id: 0, op name: MatMul\n");
        return -2;
    }
    const product *what = &made->what;
    const int8_t *a = made->a->virt;
    int32_t *c = made->c->virt;
    int wrong = fault_is("off-by-one") || (fault_is("wrong-core-2") && made->core == 4);
    for (int32_t m = 0; m < what->m; m++) {
        for (int32_t n = 0; n < what->n; n++) {
            int32_t sum = 0;
            for (int32_t k = 0; k < what->k; k++) {
                sum += a[a_index(what, m, k)] * made->b[(size_t)k * (size_t)what->n + (size_t)n];
            }
            if (fault_is("zeros")) {
                sum = 0;
            } else if (wrong && m == what->m - 1 && n == what->n - 1) {
                sum++;
            }
            c[c_index(what, m, n)] = sum;
        }
    }
    return 0;
}

API int rknn_matmul_destroy(uint64_t handle)
{
    context *made = find(handle);
    if (made == NULL) {
        return -7;
    }
    give_back(made->files[0]);
    give_back(made->files[1]);
    free(made->b);
    *made = (context){.used = 0};
    return 0;
}

#if STAND_IN_GENERATION == 2
API int rknn_mem_sync(uint64_t handle, tensor_memory *memory, int mode)
{
    if (find(handle) == NULL) {
        return -7;
    }
    return memory == NULL || mode < 1 || mode > 3 ? -5 : 0;
}

API int rknn_matmul_set_quant_params(uint64_t handle, void *parameters)
{
    (void)handle;
    (void)parameters;
    return -1;
}

API int rknn_B_normal_layout_to_native_layout(void *in, void *out, int k, int n, product *what)
{
    (void)in;
    (void)out;
    (void)k;
    (void)n;
    (void)what;
    return -1;
}
#endif

__attribute__((destructor)) static void at_exit(void)
{
    if (fault_is("")) {
        fprintf(stderr, "stand-in: %d descriptors left\n", open_files);
    }
    if (fault_is("crash-at-exit")) {
        raise(SIGSEGV);
    }
}
