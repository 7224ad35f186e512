#include "common/loader/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "common/loader/output_file.h"
#include "common/loader/safetensors_writer.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

std::string FromHex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(
        std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

/// A file of this header and `data_bytes` bytes 0, 1, 2, ...
std::string FileOf(std::string_view header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) {
    bytes += static_cast<char>(i);
  }
  return bytes;
}

/// What Open says of a file with these bytes ("" if it is accepted).
std::string Verdict(const TempDir& dir, std::string_view bytes) {
  WriteFile(dir / "file.safetensors", bytes);
  return ErrorOf([&] { SafetensorsFile::Open(dir / "file.safetensors"); });
}

/// Checks by themselves what every opened file promises; reads every byte.
void CheckPromises(const SafetensorsFile& file) {
  std::uint64_t end = 0;
  unsigned sum = 0;
  for (const TensorInfo& tensor : file.tensors()) {
    ASSERT_EQ(tensor.offset, end);
    end += tensor.bytes.size();
    ASSERT_EQ(
        tensor.Elements() * static_cast<unsigned>(DtypeBits(tensor.dtype) / 8),
        tensor.bytes.size());
    for (const std::byte b : tensor.bytes) sum += std::to_integer<unsigned>(b);
    ASSERT_EQ(file.Find(tensor.name), &tensor);
  }
  ASSERT_EQ(file.data_start() + end, file.file_bytes());
  ASSERT_LE(sum, 255 * file.file_bytes());
}

TEST(SafetensorsTest, GivesTheStrictVerdictOfEveryCase) {
  const TempDir dir;
  const auto json = nlohmann::json::parse(
      ReadFile(std::string(KVLAB_TEST_DATA) + "/safetensors_cases.json"));
  const auto& cases = json.at("cases");
  ASSERT_EQ(cases.size(), 59u);
  for (const auto& item : cases) {
    const std::string error =
        Verdict(dir, FromHex(item.at("hex").get<std::string>()));
    EXPECT_EQ(error.empty(), item.at("strict") == "accept")
        << item.at("id") << ": " << error;
    if (!error.empty()) {
      EXPECT_TRUE(Has(error, (dir / "file.safetensors").string()))
          << item.at("id");
    }
  }
}

TEST(SafetensorsTest, GivesTensorsInFileOrder) {
  const TempDir dir;
  WriteFile(dir / "f",
            FileOf(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                   R"("__metadata__":{"format":"pt"},)"
                   R"("e":{"dtype":"U8","shape":[0],"data_offsets":[8,8]},)"
                   R"("a":{"dtype":"BF16","shape":[2,2],)"
                   R"("data_offsets":[0,8]}})",
                   12));
  const SafetensorsFile opened = SafetensorsFile::Open(dir / "f");
  // A copy keeps the map alive as the original does.
  const SafetensorsFile file = opened;
  ASSERT_EQ(file.tensors().size(), 3u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "e");
  EXPECT_EQ(file.tensors()[2].name, "b");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const TensorInfo* a = file.Find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->dtype, Dtype::kBF16);
  EXPECT_EQ(ShapeText(a->shape), "[2, 2]");
  EXPECT_EQ(a->Elements(), 4u);
  const TensorInfo* b = file.Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->offset, 8u);
  EXPECT_EQ(b->bytes[0], std::byte{8});
  EXPECT_EQ(b->bytes.size(), 4u);
  EXPECT_EQ(file.Find("c"), nullptr);
  CheckPromises(file);
}

TEST(SafetensorsTest, StaysValidWhenMoved) {
  const TempDir dir;
  WriteFile(
      dir / "f",
      FileOf(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3));
  SafetensorsFile first = SafetensorsFile::Open(dir / "f");
  const TensorInfo* a = first.Find("a");
  const SafetensorsFile second = std::move(first);
  EXPECT_EQ(second.Find("a"), a);
  EXPECT_EQ(a->bytes[2], std::byte{2});
}

TEST(SafetensorsTest, SaysWhatIsWrong) {
  const TempDir dir;
  const auto one = [&](std::string_view entry, std::size_t data_bytes) {
    return Verdict(dir,
                   FileOf("{\"w\":" + std::string(entry) + "}", data_bytes));
  };
  const std::string f32x2 =
      R"({"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(one(f32x2, 8), "");

  std::string error = one(f32x2, 7);
  EXPECT_TRUE(Has(error, "incomplete file"));
  EXPECT_TRUE(Has(error, "need 8 bytes of data, found 7"));
  EXPECT_TRUE(Has(one(f32x2, 9), "found 1 bytes more"));
  EXPECT_TRUE(Has(Verdict(dir, "1234567"), "incomplete file: 7 bytes"));
  EXPECT_TRUE(Has(Verdict(dir, FileOf(std::string(60, '{'), 0).substr(0, 50)),
                  "incomplete file: the header has 60 bytes, but only 42"));
  EXPECT_TRUE(Has(Verdict(dir, std::string(8, '\xFF') + "{}"),
                  "header length 18446744073709551615 is over"));
  EXPECT_TRUE(Has(Verdict(dir, FileOf(" {}", 0)), "expected '{'"));
  EXPECT_TRUE(Has(Verdict(dir, FileOf("{\"a\":}", 0)), "not valid JSON"));
  EXPECT_TRUE(Has(Verdict(dir, "version https://git-lfs.github.com/spec/v1\n"),
                  "git lfs pull"));

  error = one(R"({"dtype":"F64","shape":[4],"data_offsets":[0,16]})", 16);
  EXPECT_TRUE(Has(error, "tensor \"w\": expected 32 bytes for F64 [4]"));
  EXPECT_TRUE(Has(error, "found data_offsets [0, 16]"));
  error = one(R"({"dtype":"U8","shape":[2],"data_offsets":[8,6]})", 8);
  EXPECT_TRUE(Has(error, "begin <= end, found [8, 6]"));
  error = one(R"({"dtype":"U8","shape":[2],"data_offsets":[-2,0]})", 8);
  EXPECT_TRUE(Has(error, "data_offsets"));
  EXPECT_TRUE(Has(error, "found [-2,0]"));
  error = one(R"({"dtype":"I32","shape":[4294967296,4294967296],)"
              R"("data_offsets":[0,0]})",
              0);
  EXPECT_TRUE(Has(error, "over 2^64 - 1 bits"));
  error = one(R"({"dtype":"F4","shape":[4],"data_offsets":[0,2]})", 2);
  EXPECT_TRUE(Has(error, "F4 has 4 bits"));
  error = one(R"({"dtype":"f32","shape":[2],"data_offsets":[0,8]})", 8);
  EXPECT_TRUE(Has(error, "dtype"));
  EXPECT_TRUE(Has(error, "found \"f32\""));
  EXPECT_TRUE(
      Has(one(R"({"dtype":"F32","shape":[2]})", 8), "data_offsets is missing"));

  const std::string two_over_one =
      Verdict(dir, FileOf("{\"w\":" + f32x2 +
                              R"(,"x":{"dtype":"F32","shape":[2],)"
                              R"("data_offsets":[4,12]}})",
                          12));
  EXPECT_TRUE(Has(two_over_one, "tensor \"x\""));
  EXPECT_TRUE(Has(two_over_one, "overlap"));
  EXPECT_TRUE(
      Has(one(R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", 12),
          "a hole"));
  const std::string twice =
      Verdict(dir, FileOf("{\"w\":" + f32x2 + ",\"w\":" + f32x2 + "}", 8));
  EXPECT_TRUE(Has(twice, "duplicate key \"w\""));
  EXPECT_TRUE(Has(Verdict(dir, FileOf(R"({"__metadata__":{"n":1}})", 0)),
                  "__metadata__.n: expected a string, found 1"));
}

TEST(SafetensorsTest, ShowsNamesOfTheFileHarmless) {
  const TempDir dir;
  const std::string error =
      Verdict(dir, FileOf(R"({"a\u001b[2J\n":{"dtype":"F32","shape":[],)"
                          R"("data_offsets":[0,3]}})",
                          3));
  EXPECT_TRUE(Has(error, R"(a\x1B[2J\x0A)"));
}

TEST(SafetensorsTest, TellsWhatStandsInPlaceOfAFile) {
  const TempDir dir;
  const auto error = [&](const char* name) {
    return ErrorOf([&] { SafetensorsFile::Open(dir / name); });
  };
  EXPECT_TRUE(Has(error("absent"), "no such file"));
  std::filesystem::create_directory(dir / "folder");
  EXPECT_TRUE(Has(error("folder"), "found a directory"));
  std::filesystem::create_symlink("gone", dir / "link");
  EXPECT_TRUE(Has(error("link"), "a link to gone, which does not exist"));
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(Has(error("pipe"), "pipe"));  // and does not wait for a writer
}

/// Two tensors, metadata, an empty tensor: every rule has something to check.
std::string SmallFile() {
  return FileOf(R"({"__metadata__":{"k":"v"},)"
                R"("a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
                R"("e":{"dtype":"I64","shape":[0],"data_offsets":[12,12]},)"
                R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
                16);
}

TEST(SafetensorsTest, RefusesEveryTruncation) {
  const TempDir dir;
  const std::string whole = SmallFile();
  WriteFile(dir / "f", whole);
  const auto open = [&] { SafetensorsFile::Open(dir / "f"); };
  ASSERT_EQ(ErrorOf(open), "");
  for (std::size_t length = whole.size(); length-- > 0;) {
    std::filesystem::resize_file(dir / "f", length);
    EXPECT_TRUE(Has(ErrorOf(open), "incomplete file")) << length;
  }
}

TEST(SafetensorsTest, SurvivesEveryChangedByteOfTheHeader) {
  const TempDir dir;
  const std::string whole = SmallFile();
  WriteFile(dir / "f", whole);
  // Changed in place: writing thousands of new files takes minutes.
  std::fstream file(dir / "f", std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t position, char c) {
    file.seekp(static_cast<std::streamoff>(position));
    file.put(c).flush();
  };
  // Every flipped bit, and the characters that mean something to JSON.
  std::string changes("\"{}[],:.-+eE019 \\\n\0\x80\xFF", 22);
  int accepted = 0, refused = 0;
  for (std::size_t i = 0; i < whole.size() - 16; ++i) {
    std::set<char> others(changes.begin(), changes.end());
    for (int bit = 0; bit < 8; ++bit) {
      others.insert(static_cast<char>(whole[i] ^ (1 << bit)));
    }
    others.erase(whole[i]);
    for (const char other : others) {
      put(i, other);
      const std::string error =
          ErrorOf([&] { CheckPromises(SafetensorsFile::Open(dir / "f")); });
      ++(error.empty() ? accepted : refused);
    }
    put(i, whole[i]);
  }
  // Most changes break a rule; those of a name or of the metadata do not.
  EXPECT_GT(refused, 4000);
  EXPECT_GT(accepted, 100);
}

TEST(SafetensorsTest, NamesEveryDtype) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Dtype::kU64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_TRUE(names.insert(DtypeName(dtype)).second) << DtypeName(dtype);
    EXPECT_EQ(DtypeFromName(DtypeName(dtype)), dtype);
  }
  EXPECT_EQ(names.size(), 22u);
  EXPECT_EQ(DtypeFromName("bf16"), std::nullopt);
}

TEST(WriteSafetensorsTest, WritesTheseBytes) {
  const TempDir dir;
  const std::string data = "ABCDEFGHIJ";
  const auto bytes = std::as_bytes(std::span(data.data(), data.size()));
  const std::vector<TensorToWrite> tensors = {
      {"z", Dtype::kBF16, {2, 2}, bytes.first(8)},
      {"\"\n\xC3\xA9", Dtype::kU8, {}, bytes.subspan(8, 1)},
      {"none", Dtype::kF32, {0, 5}, {}},
  };
  WriteSafetensors(dir / "f", {{"b", "2"}, {"a", "\x01"}}, tensors);
  // Written out by hand: given order, sorted metadata, padded to 8.
  std::string header =
      R"({"__metadata__":{"a":"\u0001","b":"2"},)"
      R"("z":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
      "\"\\\"\\n\xC3\xA9\""
      R"(:{"dtype":"U8","shape":[],"data_offsets":[8,9]},)"
      R"("none":{"dtype":"F32","shape":[0,5],"data_offsets":[9,9]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(ReadFile(dir / "f"), FileOf(header, 0) + "ABCDEFGHI");

  const SafetensorsFile file = SafetensorsFile::Open(dir / "f");
  EXPECT_EQ(file.data_start() % 8, 0u);
  EXPECT_EQ(file.metadata().at("a"), "\x01");
  CheckPromises(file);
  // Nothing else is left in the directory.
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    EXPECT_EQ(entry.path().filename(), "f");
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(WriteSafetensorsTest, WritesAFileWithoutTensors) {
  const TempDir dir;
  WriteSafetensors(dir / "f", {}, {});
  EXPECT_EQ(ReadFile(dir / "f"), FileOf("{}      ", 0));
  EXPECT_TRUE(SafetensorsFile::Open(dir / "f").tensors().empty());
}

TEST(WriteSafetensorsTest, NamesAPathThatCannotBeWritten) {
  const TempDir dir;
  const auto error = [&](const std::filesystem::path& path) {
    return ErrorOf([&] { WriteSafetensors(path, {}, {}); });
  };
  const auto absent = dir.path() / "no" / "f";
  EXPECT_TRUE(Has(error(absent), absent.string()));
  EXPECT_TRUE(Has(error(dir.path()), "directory"));
}

TEST(WriteSafetensorsTest, LeavesNothingOnAFullDisk) {
  const TempDir dir;
  const std::vector<std::byte> bytes(5000);
  const std::vector<TensorToWrite> tensors = {
      {"t", Dtype::kU8, {bytes.size()}, bytes}};
  // A limit on the size of files stands in for the full disk: the first bytes
  // can be written, the rest cannot. (Not /dev/full: run as root, a writer
  // with a fault would replace the device.)
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{1000, limit.rlim_max};
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error =
      ErrorOf([&] { WriteSafetensors(dir / "f", {}, tensors); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(Has(error, (dir / "f").string() + ": cannot be written"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(OutputFileTest, KeepsWhoMayReadIt) {
  const TempDir dir;
  namespace fs = std::filesystem;
  WriteFile(dir / "f", "old");
  fs::permissions(dir / "f", fs::perms::owner_read | fs::perms::owner_write);
  {
    OutputFile file(dir / "f");
    file.Write("new");
    file.Commit();
  }
  EXPECT_EQ(ReadFile(dir / "f"), "new");
  EXPECT_EQ(fs::status(dir / "f").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
}

TEST(OutputFileTest, AppearsWholeOrNotAtAll) {
  const TempDir dir;
  WriteFile(dir / "f", "old");
  {
    OutputFile file(dir / "f");
    file.Write("half");
    EXPECT_EQ(ReadFile(dir / "f"), "old");
  }  // no Commit: as when an Error passes through
  EXPECT_EQ(ReadFile(dir / "f"), "old");
  {
    OutputFile file(dir / "f");
    file.Write("new ");
    file.Write("text");
    file.Commit();
  }
  EXPECT_EQ(ReadFile(dir / "f"), "new text");
  int entries = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator(dir.path())) {
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

TEST(OutputFileTest, PassesOverALeftoverTemporaryFile) {
  const TempDir dir;
  const std::string name = StrCat("f.tmp", ::getpid(), "-0");
  WriteFile(dir / name, "someone else's");
  OutputFile file(dir / "f");
  file.Write("mine");
  file.Commit();
  EXPECT_EQ(ReadFile(dir / "f"), "mine");
  EXPECT_EQ(ReadFile(dir / name), "someone else's");
}

TEST(OutputFileTest, KeepsALink) {
  const TempDir dir;
  WriteFile(dir / "real", "old");
  std::filesystem::create_symlink("real", dir / "link");
  OutputFile file(dir / "link");
  file.Write("new");
  file.Commit();
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "link"));
  EXPECT_EQ(ReadFile(dir / "real"), "new");
}

TEST(OutputFileTest, RefusesALinkThatLeadsNowhere) {
  const TempDir dir;
  for (const char* target : {"gone", "link", "no/f"}) {
    std::filesystem::create_symlink(target, dir / "link");
    const std::string error = ErrorOf([&] { OutputFile file(dir / "link"); });
    EXPECT_TRUE(
        Has(error, (dir / "link").string() +
                       ": cannot be written: a link that leads nowhere"))
        << target;
    EXPECT_EQ(std::filesystem::read_symlink(dir / "link"), target);
    std::filesystem::remove(dir / "link");
  }
}

TEST(OutputFileTest, WritesIntoWhatIsNoRegularFile) {
  // A pipe stands for devices too: a test must not be able to replace
  // /dev/null on the machine of who runs it as root.
  const TempDir dir;
  const std::filesystem::path pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  { const OutputFile probe(pipe); }
  // Not hung up, as after a writer that came and went: its reader would leave.
  pollfd waiting{reader, POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 0), 0);
  std::filesystem::create_symlink("pipe", dir / "link");
  OutputFile file(dir / "link");
  file.Write("text");
  file.Commit();
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  char text[8] = {};
  EXPECT_EQ(::read(reader, text, sizeof text), 4);
  EXPECT_STREQ(text, "text");
  ::close(reader);
}

TEST(OutputFileTest, WaitsForASlowReaderOfAPipe) {
  const TempDir dir;
  const std::filesystem::path pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string text(1'000'000, 'x');  // more than a pipe holds
  std::string received;
  // Opening for reading waits until there is a writer, and the other way
  // round OutputFile does not wait: hold the pipe open until both are there.
  const int holder = ::open(pipe.c_str(), O_RDWR);
  ASSERT_GE(holder, 0);
  std::thread reader([&] { received = ReadFile(pipe); });
  OutputFile file(pipe);
  file.Write(text);
  file.Commit();
  ::close(holder);
  reader.join();
  EXPECT_EQ(received, text);
}

extern "C" void DoNothing(int /*signal*/) {}

TEST(OutputFileTest, ASignalEndsTheWaitForAReader) {
  const TempDir dir;
  const std::filesystem::path pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int idle = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(idle, 0);
  struct sigaction old {
  }, interrupts{};  // no SA_RESTART
  interrupts.sa_handler = DoNothing;
  ASSERT_EQ(::sigaction(SIGALRM, &interrupts, &old), 0);
  const itimerval often{{0, 10'000}, {0, 10'000}}, never{};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  int exit_code = 0;
  try {
    OutputFile file(pipe);
    file.Write(std::string(1'000'000, 'x'));  // more than a pipe holds
  } catch (const Error& e) {
    exit_code = e.exit_code();
  }
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &old, nullptr);
  ::close(idle);
  EXPECT_EQ(exit_code, kExitInterrupted);
}

TEST(OutputFileTest, DoesNotWaitForAPipeThatNobodyReads) {
  const TempDir dir;
  const std::filesystem::path pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(Has(ErrorOf([&] {
                    OutputFile file(pipe);
                    file.Write("text");
                  }),
                  pipe.string() + ": cannot be written: a pipe"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
}

}  // namespace
}  // namespace kvlab
