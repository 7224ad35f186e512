/// The journal of a grid: what is done is not lost, and never mixed up.
#include "day10_sparse/needle_journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/base/error.h"
#include "tests/loader/temp_dir.h"

namespace kvlab {
namespace {

class NeedleJournal : public testing::Test {
 protected:
  NeedleJournal() {
    settings_.contexts = {64, 256};
    settings_.depths = {0, 0.1};
    settings_.ks = {1, 4};
    settings_.arms = {BlockArm::kArticle};
    settings_.seeds = 2;
    settings_.own_needle = true;
  }
  GridUnit Unit(int context, double depth, std::uint64_t seed) {
    return {.id = {context, depth, seed},
            .needle = "Zara's \"pet\" is Leo.",
            .exact = true,
            .sparse = {{true, false}, {false, true}}};
  }
  std::vector<GridUnit> Open() {
    return Journal(path_, settings_, header_).units();
  }
  void Append(const GridUnit& unit) {
    Journal(path_, settings_, header_).Append(unit);
  }
  void Write(const std::string& text) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  std::string Text() { return ReadFile(path_); }
  /// Refused with this part in the message, the file untouched.
  void ExpectRefused(const std::string& part) {
    const std::string before = Text();
    try {
      Open();
      ADD_FAILURE() << "not refused; expected: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
    EXPECT_EQ(Text(), before);
  }
  TempDir dir_;
  std::filesystem::path path_ = dir_ / "journal";
  GridSettings settings_;
  nlohmann::ordered_json header_ = {{"seeds", 2}, {"kv", "q8"}};
};

TEST_F(NeedleJournal, KeepsUnits) {
  EXPECT_TRUE(Open().empty());
  Append(Unit(64, 0.1, 1));
  Append(Unit(256, 0, 2));
  const std::vector<GridUnit> units = Open();
  ASSERT_EQ(units.size(), 2u);
  EXPECT_EQ(units[0].id, (UnitId{64, 0.1, 1}));
  EXPECT_EQ(units[1].id, (UnitId{256, 0, 2}));
  EXPECT_EQ(units[0].needle, "Zara's \"pet\" is Leo.");
  EXPECT_TRUE(units[0].exact);
  ASSERT_EQ(units[0].sparse.size(), 2u);
  EXPECT_TRUE(units[0].sparse[0].found);
  EXPECT_FALSE(units[0].sparse[0].same);
  EXPECT_TRUE(units[0].sparse[1].same);
}

/// Cut anywhere in its last line, it loses that unit and no more, and what is
/// added then is whole.
TEST_F(NeedleJournal, IgnoresATornLastLine) {
  Open();
  Append(Unit(64, 0.1, 1));
  const std::string one = Text();
  Append(Unit(256, 0, 2));
  const std::string two = Text();
  for (std::size_t size = one.size(); size < two.size(); ++size) {
    Write(two.substr(0, size));
    ASSERT_EQ(Open().size(), 1u) << size;
    EXPECT_EQ(Text(), one);
  }
  Write(two.substr(0, two.size() - 3));
  Append(Unit(256, 0, 2));
  EXPECT_EQ(Text(), two);
  // Torn in its first line it is as good as new.
  for (std::size_t size = 0; size < one.find('\n'); ++size) {
    Write(two.substr(0, size));
    ASSERT_TRUE(Open().empty());
    EXPECT_EQ(Text(), two.substr(0, two.find('\n') + 1));
  }
}

TEST_F(NeedleJournal, RefusesOtherSettings) {
  Append(Unit(64, 0.1, 1));
  header_["kv"] = "f32";
  ExpectRefused("kv is \"q8\" there and \"f32\" here");
  header_["kv"] = "q8";
  header_["new"] = 1;
  ExpectRefused("new is not told there and 1 here");
  header_ = {{"seeds", 2}};
  ExpectRefused("settings that this program does not know");
}

TEST_F(NeedleJournal, RefusesWhatIsNoJournal) {
  for (const char* text :
       {"a letter to a friend", "{}\n", "[1]\n", "{\"kind\": 1}\n", "\n",
        "{\"kind\":\"day10_needle journal 1\",\"settings\":7}\n"}) {
    Write(text);
    ExpectRefused("it is no journal");
  }
  std::filesystem::remove(path_);
  std::filesystem::create_directory(path_);
  EXPECT_THROW(Open(), Error);
}

/// A line of a unit with one field replaced.
std::string Line(const std::string& field = "", const std::string& value = "") {
  std::string line = "{";
  for (const auto& [name, good] : {std::pair{"context", "64"},
                                   {"depth", "0.1"},
                                   {"seed", "1"},
                                   {"needle", "\"Leo plays the harp.\""},
                                   {"exact", "true"},
                                   {"found", "\"10\""},
                                   {"same", "\"01\""}}) {
    if (name != field) {
      line += StrCat(line == "{" ? "" : ",", '"', name, "\":", good);
    } else if (!value.empty()) {
      line += StrCat(line == "{" ? "" : ",", '"', name, "\":", value);
    }
  }
  return line + "}";
}

TEST_F(NeedleJournal, RefusesABrokenLine) {
  Open();
  const std::string header = Text();
  Write(StrCat(header, Line(), '\n'));
  ASSERT_EQ(Open().size(), 1u);
  for (const auto& [line, part] : {
           std::pair<std::string, std::string>{"{\"context\":64", "JSON"},
           {"[]", "object"},
           {"", "JSON"},
           {std::string(300, '\0'), "JSON"},
           {Line("context", "\"64\""),
            "context: expected a context of the grid"},
           {Line("context", "65"), "found 65"},
           {Line("depth", "0.2"), "depth: expected a depth of the grid"},
           {Line("depth"), "depth: "},
           {Line("seed", "-1"), "seed: expected a seed of the grid, found -1"},
           {Line("seed", "1.5"), "found 1.5"},
           {Line("seed", "1e300"), "seed: "},
           {Line("seed", "0"), "seed: "},
           {Line("seed", "3"), "seed: "},
           {Line("needle"), "needle: "},
           {Line("exact"), "exact: expected true or false, found none"},
           {Line("exact", "1"), "exact: expected true or false, found 1"},
           {Line("found", "\"1\""), "found: "},
           {Line("same", "\"12\""), "same: "},
       }) {
    Write(StrCat(header, line, '\n'));
    ExpectRefused(part);
    ExpectRefused("journal, line 2");
    ExpectRefused("; delete the file or give another --journal");
  }
}

TEST_F(NeedleJournal, RefusesANeedleThatItsSeedDoesNotDraw) {
  Open();
  const std::string header = Text();
  settings_.own_needle = false;
  const std::string drawn = DrawNeedle(FactBook::LoadShipped(), 1);
  Write(StrCat(header, Line("needle", '"' + drawn + '"'), '\n'));
  EXPECT_EQ(Open().size(), 1u);
  Write(StrCat(header, Line(), '\n'));
  ExpectRefused(StrCat("needle: expected that of its seed, \"", drawn,
                       "\", found \"Leo plays the harp.\""));
}

TEST_F(NeedleJournal, IsOfOneRunAtATime) {
  const Journal journal(path_, settings_, header_);
  ExpectRefused("another run");
}

/// A unit twice, as of journals put together: it counts once, and with two
/// results not at all.
TEST_F(NeedleJournal, CountsAUnitOnce) {
  Append(Unit(64, 0.1, 1));
  Append(Unit(256, 0, 1));
  Append(Unit(64, 0.1, 1));
  EXPECT_EQ(Open().size(), 2u);
  GridUnit other = Unit(256, 0, 1);
  other.sparse[1].same = false;
  Append(other);
  ExpectRefused("line 5: the prompt of line 3 again, with another result");
}

/// What is written to a file without a name is lost, and nobody notices.
TEST_F(NeedleJournal, NoticesThatItsFileIsGone) {
  const auto expect = [&](const std::string& damage, const auto& harm) {
    std::filesystem::remove(path_);
    Journal journal(path_, settings_, header_);
    journal.Append(Unit(64, 0.1, 1));
    EXPECT_EQ(journal.Damage(), "");
    EXPECT_NO_THROW(journal.RequireIntact());
    harm();
    EXPECT_EQ(journal.Damage(), damage);
    EXPECT_THROW(journal.RequireIntact(), Error);
    try {
      journal.Append(Unit(64, 0.1, 2));
      ADD_FAILURE() << damage;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), kExitFailed);
      EXPECT_NE(std::string(error.what())
                    .find(damage + " while the grid ran; what was done so far "
                                   "is lost"),
                std::string::npos)
          << error.what();
    }
  };
  Append(Unit(64, 0.1, 1));
  const std::size_t size = Text().size();
  const auto moved = dir_ / "moved";
  expect("it was deleted", [&] { std::filesystem::remove(path_); });
  expect("it was deleted or moved",
         [&] { std::filesystem::rename(path_, moved); });
  expect("it was replaced by another file", [&] {
    std::filesystem::rename(path_, moved);
    Write("");
  });
  expect(StrCat("it was changed: expected ", size, " bytes, found 0"),
         [&] { Write(""); });
}

TEST_F(NeedleJournal, LeavesNoEmptyFileBehindASettingThatIsNoUtf8) {
  header_["needle"] = "\xff";
  EXPECT_TRUE(Open().empty());  // written with a replacement character
  EXPECT_TRUE(Open().empty());
}

/// A model trained again has the same name and sizes.
TEST_F(NeedleJournal, KnowsAModelByItsFiles) {
  const auto copy = dir_ / "model";
  std::filesystem::copy(LabModelDirectory(), copy);
  const auto prints = [&] { return Fingerprints(LoadModel(copy)); };
  const auto original = prints();
  EXPECT_EQ(original, Fingerprints(LoadModel(LabModelDirectory())));
  for (const char* name :
       {"model.safetensors", "tokenizer.json", "facts.json"}) {
    EXPECT_TRUE(original.contains(StrCat("file ", name))) << original;
  }
  // One bit of the last weight.
  std::fstream file(copy / "model.safetensors",
                    std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.peek() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
  file.close();
  const auto changed = prints();
  for (const auto& [name, value] : changed.items()) {
    EXPECT_EQ(value == original[name], name != "file model.safetensors");
  }
}

}  // namespace
}  // namespace kvlab
