-- Ask to run. KEYS: the claim.
-- ARGV: token, payload, lease_ms, retention_ms, park (0|1), may_be_forgotten (0|1), permitted_attempt
local key, token, payload = KEYS[1], ARGV[1], ARGV[2]
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local lease_until = string.format('%.0f', now_ms + ARGV[3])

local claim, steps = {}, {}
local fields = redis.call('HGETALL', key)
for i = 1, #fields, 2 do
  claim[fields[i]] = fields[i + 1]
  if string.sub(fields[i], 1, 5) == 'step:' then
    steps[#steps + 1] = string.sub(fields[i], 6)
    steps[#steps + 1] = fields[i + 1]
  end
end

local state = claim.state
local attempt = claim.attempt or '0'

local function answer(...)
  local reply = {...}
  for i = 1, #steps do reply[#reply + 1] = steps[i] end
  return reply
end

-- Leave is given for one attempt: a redelivery of the message that carries it, after another interruption,
-- meets another doubt.
local permitted = ARGV[7] == attempt

if state then
  if claim.payload ~= payload then return {'mismatch', claim.payload} end
  if state == 'done' then return {'done', claim.result} end
  if claim.token == token then
    -- The reply to this execution's own begin was lost: it holds the claim. After it gave the claim up, a
    -- begin of the same token can only be a copy that the network delayed.
    if state ~= 'running' then return {'busy', '0'} end
    redis.call('HSET', key, 'lease_until', lease_until)
    redis.call('PEXPIRE', key, ARGV[4])
    return answer('acquired', claim.fence, attempt)
  end
  if state == 'running' and tonumber(claim.lease_until) > now_ms then
    return {'busy', string.format('%.0f', claim.lease_until - now_ms)}
  end
  local doubtful = state == 'in_doubt' or (state == 'running' and ARGV[5] == '1')
  if doubtful and not permitted then
    redis.call('HSET', key, 'state', 'in_doubt')
    redis.call('PEXPIRE', key, ARGV[4])
    return answer('in_doubt', attempt)
  end
elseif ARGV[6] == '1' and not permitted then
  return {'in_doubt', '0'}
end

-- The clock keeps the fence growing when Redis has lost the record.
local fence = string.format('%.0f', math.max((claim.fence or 0) + 1, now_us))
attempt = string.format('%.0f', attempt + 1)
redis.call('HSET', key, 'state', 'running', 'token', token, 'payload', payload, 'lease_until', lease_until,
  'fence', fence, 'attempt', attempt)
redis.call('PEXPIRE', key, ARGV[4])
return answer('acquired', fence, attempt)
