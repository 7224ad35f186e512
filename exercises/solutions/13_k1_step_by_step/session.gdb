# The first choice: who gets the place, and what is left for the others.
stop-at recency
run
selection
expect reserved == 1
expect filled == 0
print selection.reasons
set $block = 0
while selection.reasons[$block] != kvlab::BlockReason::kImportance
  set $block = $block + 1
end
answer block $block

# Each of the prompt's queries gave 1 in each of 3 * 4 heads.
set $total = 0.0
set $b = 0
while $b < blocks
  set $total = $total + input.importance[$b]
  set $b = $b + 1
end
expect $total == input.id.position * 12 within 1e-6
answer importance_total $total

# The twelve choices of the first step; the fifth is that of layer 1, head 0.
set $last_first = 0
set $choice = 1
while $choice <= 12
  set $larger = 0
  set $larger_than_last = 0
  set $b = 0
  while $b < blocks
    if input.probes[$b] > input.probes[$block]
      set $larger = $larger + 1
    end
    if input.probes[$b] > input.probes[blocks - 1]
      set $larger_than_last = $larger_than_last + 1
    end
    set $b = $b + 1
  end
  if input.id.layer == 1 && input.id.head == 0
    selection
    answer block_probe_rank $larger + 1
  end
  if $larger_than_last == 0
    set $last_first = $last_first + 1
  end
  set $choice = $choice + 1
  continue
end
answer last_first $last_first
delete

# The whole run, counted: AttendOver is given the blocks of each choice.
set $choices = 0
break kvlab::SparseTopK::AttendOver if blocks[0] == $block
commands
  silent
  set $choices = $choices + 1
  continue
end
run
answer choices $choices

# The same without importance. It is switched off before the first choice asks for it;
# $read has a bit for each block that is read.
delete
tbreak kvlab::SparseTopK::Attend
run
set var this->importance_.use_ = kvlab::ImportanceUse::kOff
set $read = 0
break kvlab::SparseTopK::AttendOver if ($read & (1 << blocks[0])) == 0
commands
  silent
  printf "first read: block %d, the cache holds %d tokens\n", blocks[0], group.kv.tokens
  set $read = $read | (1 << blocks[0])
  if $read == (1 << blocks[0])
    set $first = blocks[0]
  end
  set $last = blocks[0]
  continue
end
continue
# From the first of them to the last none is left out.
expect $read == (1 << ($last + 1)) - (1 << $first)
if $last == $first + 1
  answer blocks_off [$first, $last]
else
  answer blocks_off [$first, $first + 1, $last]
end
