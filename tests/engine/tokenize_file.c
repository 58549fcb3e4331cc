/* Prints the ids of a text file, one a line, by the tables of a tokenizer section: tokenize_file SECTION TEXT. */
#include "text/encode.h"

#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>

static uint8_t *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        perror(path);
        exit(2);
    }
    *length = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*length + 1);
    if (data == NULL || fread(data, 1, *length, file) != *length) {
        perror(path);
        exit(2);
    }
    fclose(file);
    return data;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    size_t section_length = 0;
    size_t text_length = 0;
    uint8_t *section = read_file(argv[1], &section_length);
    uint8_t *text = read_file(argv[2], &text_length);
    int32_t *ids = malloc((text_length + 1) * sizeof *ids);
    l3_id_sink sink = {ids, text_length, 0};
    l3_tables tables;
    l3_error err;
    if (ids == NULL || l3_tables_open(section, section_length, l3_load_u32(section + 4), &tables, &err) != L3_OK ||
        l3_encode(&tables, text, text_length, true, &sink, &err) != L3_OK) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (size_t i = 0; i < sink.count; i++) {
        printf("%d\n", ids[i]);
    }
    free(ids);
    free(text);
    free(section);
    return 0;
}
