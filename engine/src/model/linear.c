/* Matrix products over the pool, and the embedding. */
#include "session/session.h"

bool l3_matrix_is_integer(const l3_matrix *m) { return m->dtype == L3_Q8X8 || m->dtype == L3_Q4X8; }

void l3_operand_set(const l3_session *s, l3_operand *operand, const float *x, uint32_t k, bool integer,
                    const l3_activations *act, uint64_t at) {
    operand->x = x;
    if (integer) {
        operand->q = act->q + at;
        operand->scale = act->scale + at / L3_GROUP;
        operand->sum8 = act->sum8 + at / L3_GROUP;
        s->kernels->quantize_a8(x, k, act->q + at, act->scale + at / L3_GROUP, act->sum8 + at / L3_GROUP);
    }
}

typedef struct multiplication {
    const l3_kernels *kernels;
    const l3_product *products;
    uint32_t count;
} multiplication;

static uint32_t tiles_of(const l3_matrix *m) { return (m->rows + L3_TILE_ROWS - 1) / L3_TILE_ROWS; }

static l3_matmul_fn kernel_for(const l3_kernels *kernels, uint32_t dtype) {
    switch (dtype) {
    case L3_Q4X8: return kernels->matmul_q4;
    case L3_Q8X8: return kernels->matmul_q8;
    case L3_BF16X8: return kernels->matmul_bf16;
    default: return kernels->matmul_f32;
    }
}

/* Tiles [first, last) of the joint numbering. */
static void multiply_tiles(void *context, uint32_t first, uint32_t last, uint32_t thread) {
    const multiplication *work = context;
    uint32_t low = 0;
    uint32_t high = work->count - 1;
    (void)thread;
    while (low < high) { /* the product that holds tile `first` */
        uint32_t middle = (low + high + 1) / 2;
        if (work->products[middle].first_tile <= first) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    for (const l3_product *p = &work->products[low]; first < last; p++) {
        const l3_matrix *m = p->matrix;
        uint32_t all = tiles_of(m);
        uint32_t from = first - p->first_tile;
        uint32_t to = last - p->first_tile < all ? last - p->first_tile : all;
        uint32_t last_rows = to == all ? m->rows - (all - 1) * L3_TILE_ROWS : L3_TILE_ROWS;
        kernel_for(work->kernels, m->dtype)(m->data + p->index * m->matrix_bytes + from * m->tile_bytes, m->tile_bytes,
                                            m->k, from, to - from, last_rows, p->operands, p->n);
        first = p->first_tile + to;
    }
}

void l3_multiply(const l3_session *s, l3_product *products, uint32_t count) {
    multiplication work = {.kernels = s->kernels, .products = products, .count = count};
    uint32_t total = 0;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        const l3_matrix *m = products[i].matrix;
        products[i].first_tile = total;
        total += tiles_of(m);
        bytes += tiles_of(m) * m->tile_bytes * products[i].n;
    }
    l3_pool_run(s->engine->pool, multiply_tiles, &work, total, l3_pool_grain(s->engine->pool, total, bytes / total));
}

/* One row of the embedding. The tokens were checked against vocab_size. */
void l3_embed(const l3_session *s, int32_t id, float *out) {
    const l3_matrix *m = &s->package->weights.embedding;
    const uint8_t *tile = m->data + (uint64_t)((uint32_t)id / L3_TILE_ROWS) * m->tile_bytes;
    l3_read_tiled_row(m->dtype, tile, (uint32_t)id % L3_TILE_ROWS, m->k, out);
}
