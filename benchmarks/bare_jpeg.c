/* Pictures decoded by libjpeg alone, whole, one after the other into one row buffer: what a decoder costs by itself. */
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

struct errors {
  struct jpeg_error_mgr base;
  jmp_buf out;
};

static void leave(j_common_ptr info) { longjmp(((struct errors *)info->err)->out, 1); }

/* Decodes n pictures, of bytes bounds[i] to bounds[i + 1], to RGB as libjpeg does by default: exact DCT, smooth
   upsampling. Returns the number of pixels, or -1 - i if picture i cannot be decoded. */
int64_t bare_jpeg(const uint8_t *data, const int64_t *bounds, int64_t n) {
  struct jpeg_decompress_struct info;
  struct errors errors;
  uint8_t *volatile row = NULL;
  volatile int64_t pixels = 0, i = 0;
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave;
  jpeg_create_decompress(&info);
  if (setjmp(errors.out)) {
    jpeg_destroy_decompress(&info);
    free(row);
    return -1 - i;
  }
  for (; i < n; ++i) {
    jpeg_mem_src(&info, (unsigned char *)data + bounds[i], (unsigned long)(bounds[i + 1] - bounds[i]));
    jpeg_read_header(&info, TRUE);
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    row = realloc(row, (size_t)info.output_width * 3);
    while (info.output_scanline < info.output_height) {
      JSAMPROW rows[1] = {row};
      jpeg_read_scanlines(&info, rows, 1);
    }
    pixels += (int64_t)info.output_width * info.output_height;
    jpeg_finish_decompress(&info);
  }
  jpeg_destroy_decompress(&info);
  free(row);
  return pixels;
}
