# The call of Attend that the questions are about.
stop-at score if input.layer == 2 && input.first_head == 0
set $score = $bpnum
set $loops = 0
# Every call of Weigh, in all layers.
stop-at rescale
set $weigh = $bpnum
set $weighs = 0
commands
  silent
  set $weighs = $weighs + 1
  continue
end
run
tile
answer tokens_at_entry input.kv.tokens

# From here on: the rescales of head 0, and whether M falls. Another place than
# [rescale], because of two breakpoints at one place only the first one's
# commands run when they continue.
set $state = &heads[0].softmax
set $rescales = 0
set $falls = 0
set $last = -1e30
stop-at weights if this == $state
commands
  silent
  if step.rescaled
    set $rescales = $rescales + 1
  end
  if M < $last
    set $falls = $falls + 1
  end
  set $last = M
  continue
end

# The loop: this stop was the first.
set $loops = 1
commands $score
  silent
  set $loops = $loops + 1
  continue
end
stop-at normalise if input.layer == 2 && input.first_head == 0
continue
softmax-state
expect $loops == n
answer loop_count $loops
answer rescales $rescales
answer article_rescales $rescales + 1
answer falls $falls

# On to the end of the program: the other calls of Weigh.
tbreak _exit
continue
answer weigh_calls $weighs
