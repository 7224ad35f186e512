# What the choices of the first step read, in the bits of $read.
set $read = 0
define add_blocks
  set $i = 0
  while $i < blocks.size()
    set $read = $read | (1 << blocks[$i])
    set $i = $i + 1
  end
end
break kvlab::SparseTopK::AttendOver
run
set $choices = 1
while $choices < 11
  add_blocks
  continue
  set $choices = $choices + 1
end
add_blocks

# The twelfth choice is that of layer 2, head 3.
stop-at reserve if input.id.layer == 2 && input.id.head == 3
stop-at fill if input.id.layer == 2 && input.id.head == 3
stop-at recency if input.id.layer == 2 && input.id.head == 3
continue

# [reserve]: after LargestFirst the important blocks lead the candidates.
next
while reserved != 2
  next
end
next
answer reserved_blocks [candidates[0], candidates[1]]

# [fill]: the reserved ones are no candidates any more.
continue
next
next
expect filled == 2
answer filled_blocks [candidates[0], candidates[1]]

# [recency]: is the last block taken already?
continue
selection
set $newest = selection.reasons[blocks - 1]
if $newest == kvlab::BlockReason::kLowerProbe
  answer evicted candidates[filled - 1]
else
  answer evicted -1
end

continue
add_blocks
set $count = 0
while $read != 0
  set $count = $count + ($read & 1)
  set $read = $read >> 1
end
answer blocks_read $count

# Importance is the same in every choice, so the next one shows what k = 7 would do.
delete
stop-at reserve
continue
set var input.k = 7
next
while reserved != 4
  next
end
next
answer reserved_at_7 [candidates[0], candidates[1], candidates[2], candidates[3]]

# From the start again, and this one choice without importance: a span of length 0 is
# "no record".
delete
stop-at reserve if input.id.layer == 2 && input.id.head == 3
run
set var input.importance._M_extent._M_extent_value = 0
break kvlab::SparseTopK::AttendOver
continue
answer without_reserve [blocks[0], blocks[1], blocks[2], blocks[3]]
kill
