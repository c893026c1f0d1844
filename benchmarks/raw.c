/* The raw limits: what reading windows costs when nothing else is done. Built by data.py with gcc -O3 -march=native. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* Read n windows of `size` bytes at byte offsets into one buffer; returns the number of short reads. */
int64_t raw_pread(int fd, const uint64_t *offsets, int64_t n, int64_t size, uint8_t *buffer) {
    int64_t bad = 0;
    for (int64_t k = 0; k < n; k++) bad += pread(fd, buffer, size, (off_t)offsets[k]) != size;
    return bad;
}

/* Read n windows of `tokens` uint16 and widen each to int64 in a row of its own of `out`. */
int64_t raw_pread_widen(int fd, const uint64_t *offsets, int64_t n, int64_t tokens, int64_t *out) {
    int64_t bad = 0;
    uint16_t *buffer = malloc(tokens * 2);
    for (int64_t k = 0; k < n; k++) {
        bad += pread(fd, buffer, tokens * 2, (off_t)offsets[k]) != tokens * 2;
        int64_t *row = out + k * tokens;
        for (int64_t t = 0; t < tokens; t++) row[t] = buffer[t];
    }
    free(buffer);
    return bad;
}

/* Inputs and labels, as a training batch needs them: the widened window is written twice. */
int64_t raw_pread_batch(int fd, const uint64_t *offsets, int64_t n, int64_t tokens, int64_t *inputs, int64_t *labels) {
    int64_t bad = 0;
    uint16_t *buffer = malloc(tokens * 2);
    for (int64_t k = 0; k < n; k++) {
        bad += pread(fd, buffer, tokens * 2, (off_t)offsets[k]) != tokens * 2;
        for (int64_t t = 0; t < tokens - 1; t++) inputs[k * (tokens - 1) + t] = buffer[t];
        for (int64_t t = 1; t < tokens; t++) labels[k * (tokens - 1) + t - 1] = buffer[t];
    }
    free(buffer);
    return bad;
}

/* The same, with all that a training batch has by default: a loss mask and positions besides, in rows of tokens - 1. */
int64_t raw_pread_default(int fd, const uint64_t *offsets, int64_t n, int64_t tokens, int64_t *inputs, int64_t *labels,
                          int64_t *positions, float *mask) {
    int64_t bad = raw_pread_batch(fd, offsets, n, tokens, inputs, labels);
    for (int64_t k = 0; k < n; k++)
        for (int64_t t = 0; t < tokens - 1; t++) {
            positions[k * (tokens - 1) + t] = t;
            mask[k * (tokens - 1) + t] = 1.0f;
        }
    return bad;
}
