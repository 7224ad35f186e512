#include "common/loader/added_tokens.h"

#include <algorithm>

#include "common/loader/unicode.h"

namespace kvlab {
namespace {

std::size_t StartOfTrailingSpace(std::string_view text) {
  std::size_t size = text.size();
  while (size > 0 && IsWhiteSpace(LastCodePoint(text.substr(0, size)))) {
    do {
      --size;
    } while (size > 0 &&
             (static_cast<unsigned char>(text[size]) & 0xC0) == 0x80);
  }
  return size;
}

/// Where the white space that starts at `position` ends.
std::size_t EndOfSpace(std::string_view text, std::size_t position) {
  while (position < text.size()) {
    const Utf8Step step = NextUtf8(text.substr(position));
    if (!IsWhiteSpace(step.code)) break;
    position += step.length;
  }
  return position;
}

bool TouchesWord(std::string_view before, std::string_view after) {
  return (!before.empty() && IsWordCharacter(LastCodePoint(before))) ||
         (!after.empty() && IsWordCharacter(NextUtf8(after).code));
}

}  // namespace

AddedTokenSet::AddedTokenSet(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) {
                     return a.content < b.content;
                   });
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(),
                            [](const AddedToken& a, const AddedToken& b) {
                              return a.content == b.content;
                            }),
                tokens_.end());
  for (const AddedToken& token : tokens_) {
    starts_[static_cast<unsigned char>(token.content[0])] = true;
  }
}

const AddedToken* AddedTokenSet::LongestAt(std::string_view text) const {
  // Byte by byte, narrow the sorted tokens to those that begin like `text`. A
  // token that ends here is the first of them.
  auto first = tokens_.begin();
  auto last = tokens_.end();
  const AddedToken* longest = nullptr;
  for (std::size_t depth = 0; depth < text.size() && first != last; ++depth) {
    const auto byte = static_cast<unsigned char>(text[depth]);
    const auto at = [depth](const AddedToken& token) -> int {
      return depth < token.content.size()
                 ? static_cast<unsigned char>(token.content[depth])
                 : -1;
    };
    first = std::partition_point(
        first, last, [&](const AddedToken& t) { return at(t) < byte; });
    last = std::partition_point(
        first, last, [&](const AddedToken& t) { return at(t) == byte; });
    if (first != last && first->content.size() == depth + 1) longest = &*first;
  }
  return longest;
}

std::vector<TextPart> AddedTokenSet::Cut(std::string_view text) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;  // text before this is in `parts`
  // White space that a token with rstrip has looked at. Tokens may themselves
  // be white space; without this memory a run of them would take n^2 steps.
  std::size_t space_begin = 0, space_end = 0;
  for (std::size_t i = 0; i < text.size();) {
    const AddedToken* token = starts_[static_cast<unsigned char>(text[i])]
                                  ? LongestAt(text.substr(i))
                                  : nullptr;
    if (token == nullptr) {
      ++i;
      continue;
    }
    std::size_t start = i;
    std::size_t end = i + token->content.size();
    i = end;  // the search goes on here even if the match is discarded
    if (token->single_word &&
        TouchesWord(text.substr(0, start), text.substr(end))) {
      continue;
    }
    if (token->lstrip) {
      start =
          start <= done
              ? done
              : done + StartOfTrailingSpace(text.substr(done, start - done));
    }
    if (token->rstrip) {
      if (end < space_begin || end > space_end) {
        space_begin = end;
        space_end = EndOfSpace(text, end);
      }
      end = space_end;
    }
    if (start > done) parts.push_back({{}, text.substr(done, start - done)});
    // A token of white space whose neighbour already took it all is gone.
    if (start < end) parts.push_back({token->id, {}});
    done = end;
  }
  if (done < text.size()) parts.push_back({{}, text.substr(done)});
  return parts;
}

}  // namespace kvlab
