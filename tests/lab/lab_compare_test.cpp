// Runs the program itself, as a student does: what it prints and how it ends.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/loader/safetensors_writer.h"
#include "tests/loader/temp_dir.h"
#include "tests/require.h"
#include "tests/support/program.h"

namespace kvlab {
namespace {

using Metadata = std::map<std::string, std::string>;
using Json = nlohmann::json;

const Metadata kAxes = {{"axes.attention", "step,layer,head,element"},
                        {"stage", "three_pass"}};

class LabCompareTest : public testing::Test {
 protected:
  /// Runs `lab_compare arguments`, as words of a shell.
  ProgramRun Compare(const std::string& arguments,
                     const std::string& environment = "") {
    return RunCommand(
        StrCat(environment, " ", Quoted(KVLAB_LAB_COMPARE), " ", arguments),
        dir_.path());
  }
  std::string File(const std::string& name) {
    return Quoted((dir_ / name).string());
  }
  std::string Write(const std::string& name, std::string_view bytes) {
    WriteFile(dir_ / name, bytes);
    return File(name);
  }
  /// A file with 3 steps of 2 layers, 2 heads and 2 elements, all 1 but one,
  /// and the tokens 5, 6, 7.
  std::string Dump(const std::string& name, float value = 1,
                   const Metadata& metadata = kAxes) {
    std::vector<float> attention(3 * 2 * 2 * 2, 1);
    attention[19] = value;  // step 2, layer 0, head 1, element 1
    const std::vector<std::int32_t> tokens = {5, 6, 7};
    const std::vector<TensorToWrite> tensors = {
        {"attention",
         Dtype::kF32,
         {3, 2, 2, 2},
         std::as_bytes(std::span(attention))},
        {"tokens", Dtype::kI32, {3}, std::as_bytes(std::span(tokens))}};
    WriteSafetensors(dir_ / name, metadata, tensors);
    return File(name);
  }
  /// A directory with one program, to be put into PATH.
  std::string Programs(const std::string& name, const std::string& script) {
    std::filesystem::create_directory(dir_ / "programs");
    const auto path = dir_ / "programs" / name;
    WriteFile(path, "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::all);
    return File("programs");
  }
  bool Exists(const std::string& name) {
    return std::filesystem::exists(dir_ / name);
  }
  void ExpectFails(const ProgramRun& run, const std::string& part) {
    EXPECT_TRUE(FailsWithOneLine(run, 2, "lab_compare", part));
  }

  TempDir dir_;
};

// --- Two dumps ---------------------------------------------------------------

TEST_F(LabCompareTest, EqualDumps) {
  const ProgramRun run = Compare(Dump("a") + " " + Dump("b"));
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(run.out.starts_with("equal: every bit of 2 tensors\n"))
      << run.out;
  EXPECT_TRUE(Has(run.out, "attention         0        0        0    0 of 24"));
  EXPECT_FALSE(Has(run.out, "first difference"));
  EXPECT_FALSE(Has(run.out, "settings differ"));
}

TEST_F(LabCompareTest, ShowsWhereDumpsPart) {
  Metadata other = kAxes;
  other["stage"] = "online_softmax";
  const ProgramRun run = Compare(Dump("a", 1.5f) + " " + Dump("b", 1, other));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(run.out.starts_with("different: 1 of 2 tensors\n")) << run.out;
  EXPECT_TRUE(
      Has(run.out, "settings differ: stage three_pass / online_softmax\n"));
  EXPECT_TRUE(Has(run.out,
                  "first difference: attention, step 2, layer 0, head 1, "
                  "element 1\n  A  1.5\n  B  1.0\n"));
  // 0.5 / sqrt(24); half of the 2^23 floats from 1 to 2.
  EXPECT_TRUE(Has(run.out,
                  "attention       0.5    0.102  4,194,304    1 of 24  "
                  "different\n"))
      << run.out;
}

TEST_F(LabCompareTest, Tolerance) {
  const std::string files = Dump("a", 1.5f) + " " + Dump("b");
  const ProgramRun within = Compare(files + " --tolerance 0.5");
  EXPECT_EQ(within.exit_code, 0);
  EXPECT_TRUE(within.out.starts_with(
      "within tolerance 0.5: 1 of 2 tensors not the same bits\n"))
      << within.out;
  const ProgramRun beyond = Compare(files + " --tolerance 0.49");
  EXPECT_EQ(beyond.exit_code, 1);
  EXPECT_TRUE(
      beyond.out.starts_with("different: 1 of 2 tensors (tolerance 0.49)\n"))
      << beyond.out;
  EXPECT_TRUE(Has(beyond.out, "0.49"));
  EXPECT_EQ(Compare(Dump("a") + " " + Dump("b") + " --tolerance 0").exit_code,
            0);
}

TEST_F(LabCompareTest, NanFails) {
  const std::string a = Dump("a", NAN);
  const ProgramRun run = Compare(a + " " + a + " --tolerance 1");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_TRUE(Has(run.out, "  A  nan\n  B  nan\n"));
}

TEST_F(LabCompareTest, NotMaterialisedByDesign) {
  const auto file = [&](const std::string& name, const std::string& absent) {
    const float x = 1;
    const std::vector<TensorToWrite> tensors = {
        {"tokens", Dtype::kF32, {1}, std::as_bytes(std::span(&x, 1))}};
    WriteSafetensors(dir_ / name, {{"not_materialised", absent}}, tensors);
    return File(name);
  };
  const std::string full = Dump("a").append(" ");
  const ProgramRun missing = Compare(full + file("b", "scores"));
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_TRUE(Has(missing.out, "first difference: attention, missing in B\n"));
  const ProgramRun by_design =
      Compare(full + file("b", "scores attention weights"));
  EXPECT_EQ(by_design.exit_code, 1);  // the tokens have another dtype
  EXPECT_TRUE(Has(by_design.out, "not materialised by design in B\n"));
  EXPECT_TRUE(Has(by_design.out, "dtype I32 against F32"));
  EXPECT_TRUE(Has(Compare(file("b", "attention") + " " + File("a")).out,
                  "not materialised by design in A\n"));
}

TEST_F(LabCompareTest, ReportsJson) {
  const ProgramRun run =
      Compare(Dump("a", 1.5f) + " " + Dump("b", INFINITY, {{"seed", "2"}}) +
              " --json --tolerance 0.25");
  EXPECT_EQ(run.exit_code, 1);
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json["program"], "lab_compare");
  EXPECT_EQ(json["verdict"], "different");
  EXPECT_EQ(json["tolerance"], 0.25);
  EXPECT_EQ(json["a"]["metadata"]["stage"], "three_pass");
  EXPECT_TRUE(Has(json["b"]["file"].get<std::string>(), "/b"));
  EXPECT_EQ(json["settings"], Json::parse(R"({"seed": {"a": null, "b": "2"},
                            "stage": {"a": "three_pass", "b": null}})"));
  EXPECT_EQ(json["notes"], Json::array());
  EXPECT_EQ(json["first_difference"]["tensor"], "attention");
  const Json place = Json::parse(R"({"index": [2, 0, 1, 1],
      "place": {"step": 2, "layer": 0, "head": 1, "element": 1},
      "a": 1.5, "b": "inf"})");
  EXPECT_EQ(json["first_difference"]["element"], place);
  ASSERT_EQ(json["tensors"].size(), 2u);
  const Json& attention = json["tensors"][0];
  EXPECT_EQ(attention["name"], "attention");
  EXPECT_EQ(attention["verdict"], "different");
  EXPECT_EQ(attention["a"],
            Json::parse(R"({"dtype": "F32", "shape": [3, 2, 2, 2]})"));
  EXPECT_EQ(attention["compared"], 24);
  EXPECT_EQ(attention["differing"], 1);
  EXPECT_EQ(attention["beyond"], 1);
  EXPECT_EQ(attention["allowed"], 0.25);
  EXPECT_EQ(attention["max_abs"], "inf");
  EXPECT_EQ(attention["relative_l2"], "inf");
  EXPECT_EQ(attention["max_ulp"], 0);
  EXPECT_EQ(attention["nan"], 0);
  EXPECT_EQ(attention["infinite"], 1);
  EXPECT_EQ(attention["largest"], place);
  EXPECT_EQ(attention["heads"]["max_abs"],
            Json::parse(R"([[0.0, "inf"], [0.0, 0.0]])"));
  const Json& tokens = json["tensors"][1];
  EXPECT_EQ(tokens["verdict"], "equal");
  EXPECT_TRUE(tokens["max_ulp"].is_null());
  EXPECT_TRUE(tokens["first"].is_null());
  EXPECT_TRUE(tokens["heads"].is_null());
}

TEST_F(LabCompareTest, RealDumps) {
  const auto dump = [&](const std::string& name, const std::string& arguments) {
    const ProgramRun run =
        RunCommand(StrCat(Quoted(KVLAB_THREE_PASS), " --context 120 ",
                          arguments, " --dump ", File(name)),
                   dir_.path());
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return File(name);
  };
  const std::string a = dump("a", "--max-tokens 4 --threads 1");
  const ProgramRun same =
      Compare(a + " " + dump("b", "--max-tokens 4 --isa scalar --threads 2"));
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_TRUE(Has(same.out, "equal: every bit of 6 tensors\n"));

  const ProgramRun other =
      Compare(a + " " + dump("b", "--max-tokens 4 --seed 2"));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_TRUE(Has(other.out, "settings differ: seed 1 / 2\n"));
  EXPECT_TRUE(Has(other.out, "first difference: attention, step 0, layer 0"));
  EXPECT_TRUE(Has(other.out, "The prompts are not the same"));

  const ProgramRun shorter = Compare(a + " " + dump("b", "--max-tokens 2"));
  EXPECT_EQ(shorter.exit_code, 1);
  EXPECT_TRUE(Has(shorter.out,
                  "attention has 3 steps in A and 1 in B: what both have is "
                  "compared."))
      << shorter.out;
  EXPECT_TRUE(Has(shorter.out, "0 of 1,536"));
}

TEST_F(LabCompareTest, ManyTensorsStayShort) {
  const auto file = [&](const std::string& name, int differing) {
    std::vector<float> values(300, 1);
    for (int i = 0; i < differing; ++i) values[static_cast<std::size_t>(i)] = 2;
    std::vector<TensorToWrite> tensors;
    for (std::size_t i = 0; i < values.size(); ++i) {
      tensors.push_back({StrCat("t", i),
                         Dtype::kF32,
                         {1},
                         std::as_bytes(std::span(&values[i], 1))});
    }
    WriteSafetensors(dir_ / name, {}, tensors);
    return File(name);
  };
  const auto lines = [](const std::string& text) {
    return std::count(text.begin(), text.end(), '\n');
  };
  const std::string a = file("a", 0) + " ";
  const ProgramRun equal = Compare(a + file("b", 0));
  EXPECT_LT(lines(equal.out), 10);
  EXPECT_TRUE(Has(equal.out, "and 300 tensors more, 300 of them equal"));
  const ProgramRun few = Compare(a + file("b", 2));
  EXPECT_TRUE(Has(few.out, "and 298 tensors more, 298 of them equal"));
  const ProgramRun many = Compare(a + file("b", 200));
  EXPECT_TRUE(many.out.starts_with("different: 200 of 300 tensors\n"));
  EXPECT_TRUE(Has(many.out, "and 240 tensors more, 100 of them equal"));
  EXPECT_LT(lines(many.out), 150);
}

TEST_F(LabCompareTest, ShowsAFileHarmless) {
  const auto file = [&](const std::string& name, float x) {
    const std::vector<TensorToWrite> tensors = {
        {"t\x1B[31m", Dtype::kF32, {1}, std::as_bytes(std::span(&x, 1))}};
    WriteSafetensors(dir_ / name,
                     {{StrCat("k\n", name), "v\x1B"}, {"stage", "\x1B[2J"}},
                     tensors);
    return File(name);
  };
  const ProgramRun run = Compare(file("a", 1) + " " + file("b", 2));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_FALSE(Has(run.out, "\x1B"));
  EXPECT_TRUE(Has(run.out, "first difference: t\\x1B[31m, [0]\n"));
  EXPECT_TRUE(Has(run.out, "k\\x0Aa v\\x1B / (none)"));
}

TEST_F(LabCompareTest, ManySettingsStayShort) {
  Metadata many;
  for (int i = 0; i < 20'000; ++i) many[StrCat("key", i)] = "x";
  const std::string files = Dump("a", 1, {}) + " " + Dump("b", 1, many);
  const ProgramRun run = Compare(files);
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_LT(run.out.size(), 2000u);
  EXPECT_TRUE(Has(run.out, "settings differ: key0 (none) / x; key1 "));
  EXPECT_TRUE(Has(run.out, "; and 19980 more\n"));
  const ProgramRun json = Compare(files + " --json", "timeout 60");
  EXPECT_EQ(Json::parse(json.out)["settings"].size(), 20'000u);
}

// --- Bad input ---------------------------------------------------------------

TEST_F(LabCompareTest, BadFilesAreOneLineAndTwo) {
  const std::string good = Dump("good");
  const std::string bytes = ReadFile(dir_ / "good");
  Write("short", std::string_view(bytes).substr(0, bytes.size() - 1));
  Write("empty", "");
  Write("text", "This is no dump.");
  Write("length", std::string(8, '\xFF') + "{}");
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  const std::map<std::string, std::string> faults = {
      {"absent", "absent: no such file"},
      {".", "found a directory"},
      {"fifo", "fifo: expected a regular file"},
      {"empty", "empty: incomplete file"},
      {"short", "short: incomplete file"},
      {"text", "text: header length"},
      {"length", "length: header length"}};
  for (const auto& [name, part] : faults) {
    ExpectFails(Compare(File(name) + " " + good, "timeout 20"), part);
    ExpectFails(Compare(good + " " + File(name), "timeout 20"), part);
    ExpectFails(Compare(good + " " + File(name) + " --json", "timeout 20"),
                part);
  }
}

TEST_F(LabCompareTest, WrongUsageIsOneLineAndTwo) {
  const std::string a = Dump("a");
  ExpectFails(Compare(""), "A is required");
  ExpectFails(Compare(a), "expected two files, or --golden");
  ExpectFails(Compare(a + " ''"), "B");
  ExpectFails(Compare(a + " " + a + " " + a), "not expected");
  ExpectFails(Compare(a + " " + a + " --bogus"), "--bogus");
  for (const char* value :
       {"-1", "nan", "inf", "x", "1e999", "0x1", "1 ", "1,5"}) {
    ExpectFails(Compare(StrCat(a, " ", a, " --tolerance '", value, "'")),
                StrCat("--tolerance: expected a decimal number of 0 or more, "
                       "like 0.001 or 1e-6, found \"",
                       value, '"'));
  }
  ExpectFails(Compare(a + " " + a + " --tolerance ''"), "--tolerance");
  EXPECT_EQ(Compare(a + " " + a + " --tolerance 1e-6").exit_code, 0);
  ExpectFails(Compare(a + " " + a + " --golden x"), "excludes");
  ExpectFails(Compare(a + " --golden x --tolerance 1"), "excludes");
  ExpectFails(Compare(a + " --golden x --svg y"), "excludes");
  ExpectFails(Compare(a + " --golden ''"), "--golden");
  ExpectFails(Compare(a + " " + a + " --svg ''"), "--svg");
  ExpectFails(Compare(a + " " + a + " --svg -"),
              "--svg: expected the name of a file, found \"-\"");
}

TEST_F(LabCompareTest, LostOutputIsNotADifference) {
  if (!std::filesystem::exists("/dev/full")) return;  // Linux alone has it
  ExpectFails(Compare(Dump("a") + " " + Dump("b") + " >/dev/full"),
              "standard output cannot be written");
}

TEST_F(LabCompareTest, TellsHelpAndVersion) {
  const ProgramRun help = Compare("--help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_TRUE(Has(help.out, "max|A-B| <= X * max|B|"));
  EXPECT_TRUE(Has(help.out, "2 wrong usage"));
  EXPECT_TRUE(Compare("--version").out.starts_with("lab_compare "));
}

// --- Golden sums -------------------------------------------------------------

/// Of what Dump("dump", 1, {}) writes, by Python's hashlib.
constexpr char kSum[] =
    "072ea2ed12304814f2a9a26b446e55b1cd2b7eab5a12ea1a8504829419e34166";
constexpr char kOtherSum[] =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

TEST_F(LabCompareTest, GoldenSum) {
  const std::string dump = Dump("dump", 1, {});
  const auto golden = [&](const std::string& text) {
    return Compare("--golden " + Write("golden.sha256", text) + " " + dump);
  };
  const ProgramRun equal = golden(StrCat(kSum, "  dump\n"));
  EXPECT_EQ(equal.exit_code, 0);
  EXPECT_EQ(equal.err, "");
  EXPECT_TRUE(equal.out.starts_with("equal: ")) << equal.out;
  EXPECT_TRUE(Has(equal.out, StrCat("computed  ", kSum)));

  const ProgramRun other = golden(StrCat(kOtherSum, "  dump\n"));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_TRUE(other.out.starts_with("different: ")) << other.out;
  EXPECT_TRUE(Has(other.out, StrCat("computed  ", kSum)));
  EXPECT_TRUE(Has(other.out, StrCat("expected  ", kOtherSum)));
  EXPECT_TRUE(Has(other.out, "same settings?"));

  std::string upper = kSum;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_EQ(golden(upper + " *dump\r\n").exit_code, 0);
  EXPECT_EQ(golden(StrCat(kSum, "  any name")).exit_code, 0);
  // Of several sums, the one with the dump's name.
  const std::string both = StrCat(kOtherSum, "  other\n", kSum, "  x/dump\n");
  EXPECT_EQ(golden(both).exit_code, 0);
  EXPECT_EQ(golden(StrCat(kSum, "  other\n", kOtherSum, "  dump\n")).exit_code,
            1);
}

TEST_F(LabCompareTest, GoldenJson) {
  const std::string golden = Write("golden", StrCat(kOtherSum, "  dump\n"));
  const ProgramRun run =
      Compare("--json --golden " + golden + " " + Dump("dump", 1, {}));
  EXPECT_EQ(run.exit_code, 1);
  const Json json = Json::parse(run.out);
  EXPECT_EQ(json["verdict"], "different");
  EXPECT_EQ(json["sha256"]["computed"], kSum);
  EXPECT_EQ(json["sha256"]["expected"], kOtherSum);
  EXPECT_EQ(json["golden"]["name"], "dump");
}

TEST_F(LabCompareTest, BadGoldenFiles) {
  const std::string dump = Dump("dump");
  const auto golden = [&](const std::string& text) {
    return Compare("--golden " + Write("golden", text) + " " + dump);
  };
  const std::string sum = kSum;
  ExpectFails(golden(""), "golden: expected one sum");
  ExpectFails(golden("\n"), "golden: line 1: expected \"SUM  NAME\"");
  ExpectFails(golden(sum + "\n"), "line 1");
  ExpectFails(golden(sum.substr(1) + "  dump\n"), "line 1");
  ExpectFails(golden(sum + "0  dump\n"), "line 1");
  ExpectFails(golden("g" + sum.substr(1) + "  dump\n"), "line 1");
  ExpectFails(golden(sum + "  dump\nSHA256 (dump) = " + sum), "line 2");
  ExpectFails(golden(StrCat(sum, "  a\n", sum, "  b\n")),
              "for dump, found 2 sums, 0 for this name");
  ExpectFails(golden(StrCat(sum, "  dump\n", kOtherSum, "  dump\n")),
              "found 2 sums, 2 for this name");
  ExpectFails(Compare("--golden " + File("absent") + " " + dump), "absent");
  ExpectFails(Compare("--golden " + File(".") + " " + dump), "directory");
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  ExpectFails(Compare("--golden " + File("fifo") + " " + dump, "timeout 20"),
              "fifo: expected a regular file");
  // A damaged dump is told from another one.
  Write("golden", sum + "  dump\n");
  Write("short", ReadFile(dir_ / "dump").substr(0, 150));
  ExpectFails(Compare("--golden " + File("golden") + " " + File("short")),
              "short: incomplete file");
}

TEST_F(LabCompareTest, OtherProgramsForTheSum) {
  const std::string arguments = "--golden " +
                                Write("golden", StrCat(kSum, "  dump\n")) +
                                " " + Dump("dump", 1, {});
  // macOS before 15 has shasum alone.
  const std::string shasum = Programs(
      "shasum", StrCat("[ \"$*\" = '-a 256' ] && echo '", kSum, "  -'\n"));
  EXPECT_EQ(Compare(arguments, "PATH=" + shasum).exit_code, 0);
  ExpectFails(Compare(arguments, "PATH=" + File("absent")),
              "neither sha256sum nor shasum");
  const std::string broken = Programs("sha256sum", "echo what; exit 3\n");
  ExpectFails(Compare(arguments, "PATH=" + broken),
              "sha256sum: expected a SHA-256 sum and exit code 0, found "
              "\"what\\x0A\" and exit code 3");
  Programs("sha256sum", StrCat("echo '", kSum, "  -'; exit 1\n"));
  ExpectFails(Compare(arguments, "PATH=" + broken), "exit code 1");
  Programs("sha256sum", "kill -9 $$\n");
  ExpectFails(Compare(arguments, "PATH=" + broken + ":/bin:/usr/bin"),
              "exit code 137");
}

// --- The picture -------------------------------------------------------------

TEST_F(LabCompareTest, DrawsThePicture) {
  if (RunCommand("command -v gnuplot", dir_.path()).exit_code != 0) {
    KVLAB_SKIP_OR_FAIL("gnuplot", "not installed; install gnuplot-nox");
  }
  const std::string files = Dump("it's <a>&{b}", 1.5f) + " " + Dump("b", NAN);
  const ProgramRun run = Compare(files + " --svg " + File("x.svg"));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.err, "");
  EXPECT_TRUE(run.out.starts_with("different: ")) << run.out;
  const std::string svg = ReadFile(dir_ / "x.svg");
  EXPECT_TRUE(svg.starts_with("<?xml"));
  EXPECT_TRUE(Has(svg, "</svg>"));
  EXPECT_TRUE(Has(svg, "A: it's &lt;a>&amp;{b}   B: b"));
  EXPECT_TRUE(Has(svg, ">nan<"));
  EXPECT_TRUE(Has(svg, ">layer<"));
  // Equal files, and files of which nothing is a number.
  const std::string a = File("b");
  EXPECT_EQ(Compare(a + " " + a + " --svg " + File("y.svg")).exit_code, 1);
  EXPECT_TRUE(Has(ReadFile(dir_ / "y.svg"), "</svg>"));
  EXPECT_EQ(Compare(Dump("c") + " " + File("c") + " --svg " + File("z.svg"))
                .exit_code,
            0);
  EXPECT_TRUE(Has(ReadFile(dir_ / "z.svg"), ">0<"));
}

TEST_F(LabCompareTest, GnuplotGetsEveryError) {
  // A stand-in that shows what it is sent.
  const std::string path =
      Programs("gnuplot", "cat\necho '</svg>'\n").append(":/bin:/usr/bin");
  const ProgramRun run =
      Compare(Dump("a", 1.5f) + " " + Dump("b") + " --svg " + File("x"),
              "PATH=" + path);
  EXPECT_EQ(run.exit_code, 1);
  const std::string script = ReadFile(dir_ / "x");
  // head, layer, error: 0.5 / sqrt(6) in layer 0, head 1.
  EXPECT_TRUE(
      Has(script, "$numbers << END\n0 0 0\n1 0 0.204124\n0 1 0\n1 1 0\nEND\n"))
      << script;
  EXPECT_TRUE(Has(script, "1 0 2.0e-01 0x101828\n"));
  EXPECT_FALSE(Has(script, "$marked"));
  EXPECT_TRUE(Has(script, "set cbrange [0:0.204124]"));
}

TEST_F(LabCompareTest, ThePictureAppearsWholeOrNotAtAll) {
  const std::string arguments =
      Dump("a") + " " + Dump("b") + " --svg " + Write("x.svg", "before");
  const auto plot = [&](const std::string& script) {
    return Compare(arguments,
                   "PATH=" + Programs("gnuplot", script) + ":/bin:/usr/bin");
  };
  ExpectFails(plot("echo '<svg>'\n"), "gnuplot: expected a picture");
  ExpectFails(plot("echo '<svg></svg>'; echo 'no such font' >&2; exit 1\n"),
              "found exit code 1: no such font");
  ExpectFails(plot("echo '<svg>'; kill -9 $$\n"), "exit code 137");
  EXPECT_EQ(ReadFile(dir_ / "x.svg"), "before");
  EXPECT_EQ(plot("echo '<svg></svg>'\n").exit_code, 0);
  EXPECT_EQ(ReadFile(dir_ / "x.svg"), "<svg></svg>\n");
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path())) {
    EXPECT_FALSE(Has(entry.path().string(), ".tmp")) << entry.path();
  }
}

TEST_F(LabCompareTest, SaysHowToGetGnuplot) {
  const ProgramRun run =
      Compare(Dump("a") + " " + Dump("b") + " --svg " + File("x.svg"),
              "PATH=" + File("absent"));
  EXPECT_TRUE(FailsWithOneLine(run, 1, "lab_compare",
                               "--svg: there is no gnuplot here, so no "
                               "picture; install it (apt-get install "
                               "gnuplot-nox"));
  EXPECT_FALSE(Exists("x.svg"));
  // Found out before the work, which would say that these are no dumps.
  EXPECT_TRUE(Has(Compare(Write("a", "x") + " " + Write("b", "x") + " --svg " +
                              File("x.svg"),
                          "PATH=" + File("absent"))
                      .err,
                  "no gnuplot"));
}

/// A run that cannot report must not replace a picture.
TEST_F(LabCompareTest, KeepsTheOldPictureIfItCannotReport) {
  if (!std::filesystem::exists("/dev/full")) return;
  const std::string path = Programs("gnuplot", "cat\necho '</svg>'\n");
  const std::string svg = Write("x.svg", "before");
  ExpectFails(
      Compare(Dump("a") + " " + Dump("b") + " --svg " + svg + " >/dev/full",
              "PATH=" + path + ":/bin:/usr/bin"),
      "standard output cannot be written");
  EXPECT_EQ(ReadFile(dir_ / "x.svg"), "before");
}

TEST_F(LabCompareTest, RefusesWhatCannotBeDrawn) {
  const std::string a = Dump("a");
  const std::string plain = Dump("plain", 1, {});
  ExpectFails(Compare(plain + " " + plain + " --svg " + File("x.svg")),
              "--svg: expected a tensor \"attention\"");
  ExpectFails(Compare(a + " " + a + " --svg " + File("absent/x.svg")),
              "absent/x.svg: cannot be written");
  ExpectFails(Compare(a + " " + a + " --svg " + File(".")), "a directory");
  const std::string bytes = ReadFile(dir_ / "a");
  ExpectFails(Compare(plain + " " + a + " --svg " + a), "would be overwritten");
  EXPECT_EQ(ReadFile(dir_ / "a"), bytes);
}

}  // namespace
}  // namespace kvlab
