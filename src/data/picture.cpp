// One PNG or JPEG file, decoded by libpng and libjpeg.
#include <fmt/core.h>
#include <png.h>

#include <csetjmp>
#include <cstring>
// jpeglib.h needs the types of stdio.
// clang-format off
#include <cstdio>
#include <jpeglib.h>
// clang-format on

#include "data/file.h"
#include "ebb/data/image_folder.h"

namespace ebb::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t most_pixels = std::int64_t{1} << 26, most_bytes = std::int64_t{1} << 28;

void check_size(const fs::path& path, std::int64_t height, std::int64_t width) {
  if (height < 1 || width < 1 || height > most_pixels / width)
    fail_file(path, "an image of at most {} pixels is expected, but it has {} × {}", most_pixels,
              width, height);
}

// Frees what libpng allocated, whichever way reading ends.
struct PngImage {
  png_image image = {};
  PngImage() { image.version = PNG_IMAGE_VERSION; }
  ~PngImage() { png_image_free(&image); }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
};

Picture read_png(const fs::path& path, const std::string& bytes) {
  PngImage png;
  if (png_image_begin_read_from_memory(&png.image, bytes.data(), bytes.size()) == 0)
    fail_file(path, "not a whole PNG file: {}", png.image.message);
  const std::int64_t height = png.image.height, width = png.image.width;
  check_size(path, height, width);
  png.image.format = PNG_FORMAT_RGBA;
  const auto area = static_cast<std::size_t>(height * width);
  std::vector<std::uint8_t> with_alpha(4 * area);
  if (png_image_finish_read(&png.image, nullptr, with_alpha.data(), 0, nullptr) == 0)
    fail_file(path, "not a whole PNG file: {}", png.image.message);
  Picture picture{height, width, std::vector<std::uint8_t>(3 * area)};
  for (std::size_t i = 0; i < area; ++i)
    for (std::size_t c = 0; c < 3; ++c) {
      const unsigned blended = with_alpha[4 * i + c] * unsigned{with_alpha[4 * i + 3]};
      picture.pixels[3 * i + c] = static_cast<std::uint8_t>((blended + 127) / 255);
    }
  return picture;
}

// libjpeg reports errors by calling a function that must not return: it jumps back to
// `decode_jpeg`.
struct JpegErrors {
  jpeg_error_mgr base = {};  // first, because libjpeg passes its address back
  std::jmp_buf back = {};
  char message[JMSG_LENGTH_MAX] = {};
};

[[noreturn]] void jump_back(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->back, 1);
}

// libjpeg warns of damaged data, which it fills with grey. Here this is an error.
void fail_on_warning(j_common_ptr info, int level) {
  if (level < 0) jump_back(info);
}

// A few bytes can ask for a whole image to be decoded again and again.
void limit_scans(j_common_ptr info) {
  constexpr int most_scans = 100;
  const auto* decompress = reinterpret_cast<const jpeg_decompress_struct*>(info);
  if (decompress->input_scan_number <= most_scans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  std::strcpy(errors->message, "more than 100 scans");
  std::longjmp(errors->back, 1);
}

// Everything between setjmp and longjmp is trivially destructible; memory is the caller's. The
// first call gives the size, the second fills `out`.
bool decode_jpeg(const std::string& bytes, JpegErrors& errors, std::int64_t& height,
                 std::int64_t& width, std::uint8_t* out) {
  jpeg_decompress_struct info = {};
  jpeg_progress_mgr progress = {};
  info.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = jump_back;
  errors.base.emit_message = fail_on_warning;
  if (setjmp(errors.back) != 0) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  progress.progress_monitor = limit_scans;
  info.progress = &progress;
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  height = info.image_height, width = info.image_width;
  if (out != nullptr) {
    info.out_color_space = JCS_RGB;
    jpeg_start_decompress(&info);
    while (info.output_scanline < info.output_height) {
      JSAMPROW row = out + static_cast<std::size_t>(info.output_scanline) * info.output_width * 3;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
  }
  jpeg_destroy_decompress(&info);
  return true;
}

Picture read_jpeg(const fs::path& path, const std::string& bytes) {
  JpegErrors errors;
  Picture picture;
  if (!decode_jpeg(bytes, errors, picture.height, picture.width, nullptr))
    fail_file(path, "not a whole JPEG file: {}", errors.message);
  check_size(path, picture.height, picture.width);
  picture.pixels.resize(static_cast<std::size_t>(3 * picture.height * picture.width));
  if (!decode_jpeg(bytes, errors, picture.height, picture.width, picture.pixels.data()))
    fail_file(path, "not a whole JPEG file: {}", errors.message);
  return picture;
}

}  // namespace

// Chooses by the file's contents, because names are often wrong.
Picture read_picture(const fs::path& path) {
  const std::string bytes = File(path).text(most_bytes);
  if (bytes.starts_with("\x89PNG")) return read_png(path, bytes);
  if (bytes.starts_with("\xff\xd8")) return read_jpeg(path, bytes);
  fail_file(path, "a PNG or JPEG file is expected, but its first bytes are of neither");
}

}  // namespace ebb::data
