-- Put the result on record. KEYS: the claim. ARGV: token, payload, retention_ms, fence, attempt, result
local key, token, fence, attempt = KEYS[1], ARGV[1], ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

local claim = redis.call('HMGET', key, 'state', 'token', 'lease_until', 'fence', 'attempt', 'result')
local state, owner = claim[1], claim[2]
if state == 'done' then
  -- The first to finish stands. The same token: the reply to its complete was lost.
  if owner == token then return {'completed'} end
  return {'conflict', claim[6]}
end
local in_time = state == 'running' and owner == token and tonumber(claim[3]) > now_ms
if claim[4] and tonumber(claim[4]) > tonumber(fence) then fence = claim[4] end
if claim[5] and tonumber(claim[5]) > tonumber(attempt) then attempt = claim[5] end

-- Redis at its memory limit lets a script go on whose first write frees memory: the effect has happened.
redis.call('DEL', key)
redis.call('HSET', key, 'state', 'done', 'token', token, 'payload', ARGV[2], 'fence', fence,
  'attempt', attempt, 'result', ARGV[6])
redis.call('PEXPIRE', key, ARGV[3])
if in_time then return {'completed'} end
return {'late'}
