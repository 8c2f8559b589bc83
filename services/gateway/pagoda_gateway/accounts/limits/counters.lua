-- Counters of organisations, tenants and keys: what they use now, and who holds it. What time it is
-- comes from clock.lua, which is before this in one script.
--
-- KEYS[1]: a prefix; every key begins with it:
--   <it>generation      which counters these are: other ones after a loss
--   <it>open:<org>      the generation; without, or with another, the organisation is not open
--   <it>scope:<scope>   one scope's state; a scope is `key:<id>`, `tenant:<id>` or
--                       `organisation:<id>`. Those of a tenant go with it to another organisation.
--   <it>held:<org>      request id -> its hold, of requests that came in for this organisation
--   <it>leases          `<request id> <org>` by when the lease runs out, ms
--   <it>unsettled       the same of holds whose gateway is gone, by when somebody last looked, ms
--   <it>clock           see clock.lua
-- ARGV[1]: what to do; ARGV[2]: its arguments, JSON. Numbers are integers below 2^53.
--
-- A hold is what one request takes of each of its scopes:
--   status    live | lost (its gateway is gone; its money stays held) | settled | void (no such
--             request: whoever comes later with this id has given up before)
--   scopes    their names;  budgets: those of them that limit money
--   at        when it was taken, ms;  lost_at: when its gateway was found to be gone
--   day       whose budget pays, days since 1970; holds of earlier versions have `at` alone
--   requests, tokens, micros
-- A state is the sum of holds, and of those that were forgotten since, by one rule: `count`.

local organisation = arguments.organisation

local SLICES = 61 -- seconds of a window: the one that runs and the 60 before it
local MAX_REAPED = 100
local MAX_LOST = 200

local function slice_of(ms) return math.floor(ms / 1000) end

local states, changed = {}, {}

-- Return a scope's state as of now: old slices are gone, and so is what was of another day.
local function load(scope)
  local state = states[scope]
  if state then return state end
  local packed = redis.call('GET', prefix .. 'scope:' .. scope)
  state = packed and cmsgpack.unpack(packed)
    or {requests = {}, tokens = {}, running = 0, seeded = 0, epoch = epoch,
        day = today, day_spent = 0, day_held = 0,
        month = this_month, month_spent = 0, month_held = 0}
  local newest = slice_of(now)
  local oldest = newest - SLICES + 1
  for _, window in ipairs({state.requests, state.tokens}) do
    for slice in pairs(window) do
      if slice < oldest or slice > newest then window[slice] = nil end
    end
  end
  if (state.epoch or 0) ~= epoch or state.day > today then
    state.epoch, state.seeded, state.day, state.month = epoch, 0, nil, nil
  end
  if state.day ~= today then
    state.day, state.day_spent, state.day_held = today, 0, 0
  end
  if state.month ~= this_month then
    state.month, state.month_spent, state.month_held = this_month, 0, 0
  end
  states[scope] = state
  return state
end

local function store()
  for scope in pairs(changed) do
    redis.call('SET', prefix .. 'scope:' .. scope, cmsgpack.pack(states[scope]))
  end
end

local function shift(window, slice, amount)
  local left = (window[slice] or 0) + amount
  window[slice] = left ~= 0 and left or nil
end

local function count_money(state, hold, sign)
  if state.seeded ~= 1 or hold.status == 'void' then return end
  local amount, day = sign * hold.micros, hold.day or day_of(hold.at)
  local is_today, is_this_month = day == state.day, month_of(day) == state.month
  if hold.status == 'settled' then
    if is_today then state.day_spent = state.day_spent + amount end
    if is_this_month then state.month_spent = state.month_spent + amount end
  else
    if is_today then state.day_held = state.day_held + amount end
    if is_this_month then state.month_held = state.month_held + amount end
  end
end

-- Add (sign 1) or take away (-1) what a hold uses of one scope.
local function count_in(scope, hold, sign)
  local state = load(scope)
  local slice = slice_of(hold.at)
  if slice > slice_of(now) - SLICES and hold.status ~= 'void' then
    shift(state.requests, slice, sign * hold.requests)
    shift(state.tokens, slice, sign * hold.tokens)
  end
  if hold.status == 'live' then state.running = state.running + sign end
  count_money(state, hold, sign)
  changed[scope] = true
end

local function count(hold, sign)
  for _, scope in ipairs(hold.scopes) do count_in(scope, hold, sign) end
end

local leases, unsettled = prefix .. 'leases', prefix .. 'unsettled'

local function held_of(owner) return prefix .. 'held:' .. owner end

-- A hold's name where those of all organisations are; ids of requests have no spaces.
local function member_of(owner, id) return id .. ' ' .. owner end

local function owner_and_id(member)
  local id, owner = string.match(member, '^(%S+) (.*)$')
  return owner, id
end

local function find(owner, id)
  local packed = redis.call('HGET', held_of(owner), id)
  return packed and cmsgpack.unpack(packed)
end

local function write(owner, id, hold)
  redis.call('HSET', held_of(owner), id, cmsgpack.pack(hold))
end

local function lend(owner, id, lease_ms)
  redis.call('ZADD', leases, now + lease_ms, member_of(owner, id))
end

local function keep(owner, id, hold, lease_ms)
  write(owner, id, hold)
  lend(owner, id, lease_ms)
end

local function lose(owner, id, hold)
  hold.status, hold.lost_at = 'lost', now
  write(owner, id, hold)
  redis.call('ZREM', leases, member_of(owner, id))
  redis.call('ZADD', unsettled, now, member_of(owner, id))
end

local function find_again(owner, id) redis.call('ZREM', unsettled, member_of(owner, id)) end

local function forget(owner, id)
  redis.call('HDEL', held_of(owner), id)
  redis.call('ZREM', leases, member_of(owner, id))
  find_again(owner, id)
end

local function is_seeded(hold)
  for _, scope in ipairs(hold.budgets) do
    if load(scope).seeded ~= 1 then return false end
  end
  return true
end

-- Free the places of requests whose gateway has not renewed them. Their tokens leave the window
-- with time. What they were billed nobody knows yet: their money stays held until it is settled.
local function reap()
  local due = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, MAX_REAPED)
  for _, member in ipairs(due) do
    local owner, id = owner_and_id(member)
    local hold = find(owner, id)
    if hold and hold.status == 'live' then
      count(hold, -1)
      hold.status = 'lost'
      count(hold, 1)
      if #hold.budgets > 0 and hold.micros > 0 then
        lose(owner, id, hold)
      else
        forget(owner, id)
      end
    elseif hold and hold.status == 'settled' and not is_seeded(hold)
        and now < hold.at + arguments.forget_ms then
      lend(owner, id, arguments.lease_ms)
    else
      forget(owner, id)
    end
  end
end

-- Return a window's sum, and when (ms from now) it will be empty.
local function sum(window)
  local total, last = 0, nil
  for slice, amount in pairs(window) do
    total = total + amount
    if not last or slice > last then last = slice end
  end
  return total, last and (last + SLICES) * 1000 - now or 0
end

-- Return when (ms from now) so much will have left a window.
local function wait_for(window, amount)
  local slices = {}
  for slice in pairs(window) do slices[#slices + 1] = slice end
  table.sort(slices)
  for _, slice in ipairs(slices) do
    amount = amount - window[slice]
    if amount <= 0 then return (slice + SLICES) * 1000 - now end
  end
  return SLICES * 1000
end

local refusals -- of {number of the scope, dimension, used, held, ms to wait; -1: nobody knows}

local function refuse(...) refusals[#refusals + 1] = {...} end

local function check_window(number, dimension, window, limit, need)
  local used = sum(window)
  if limit and used + need > limit then
    refuse(number, dimension, used, 0, wait_for(window, used + need - limit))
  end
end

local function check_budget(number, dimension, spent, held, limit, need, ms_to_reset)
  if not limit or spent + held + need <= limit then return end
  -- What others hold may come back any moment.
  refuse(number, dimension, spent, held, spent + need <= limit and -1 or ms_to_reset())
end

local function usages(scopes)
  local found = {}
  for number, scope in ipairs(scopes) do
    local state = load(scope.name)
    local requests, requests_reset = sum(state.requests)
    local tokens, tokens_reset = sum(state.tokens)
    found[number] = {requests, requests_reset, tokens, tokens_reset, state.running,
                     state.day_spent, state.day_held, state.month_spent, state.month_held}
  end
  return found
end

local operations = {}

-- Return which generation of counters this is, the time, and that of the calendar.
function operations.generation()
  local name = prefix .. 'generation'
  redis.call('SET', name, string.format('%.0f-%s', now, arguments.name), 'NX')
  return {redis.call('GET', name), now, calendar}
end

-- Take all of a hold, or nothing: {'taken' or 'refused', the day, why, what scopes use}. {'new'}:
-- the organisation is not open. {'seed', scope}: nobody has said what that scope spent. {'void'}:
-- the request has been given up.
local function reserve(item)
  local held = find(organisation, item.id)
  if held and held.status == 'void' then return {'void'} end
  if held and held.status == 'live' then
    return {'taken', held.day or day_of(held.at), {}, usages(item.scopes)}
  end
  -- A line of a batch comes again under its id after its gateway was killed.
  local lost = held and held.status == 'lost' and held
  if lost then count(lost, -1) end
  refusals = {}
  local hold = {status = 'live', scopes = {}, budgets = {}, at = now, day = today,
                requests = 1, tokens = item.tokens, micros = item.micros}
  for number, scope in ipairs(item.scopes) do
    local state = load(scope.name)
    hold.scopes[number] = scope.name
    if scope.day or scope.month then
      if state.seeded ~= 1 then
        if lost then count(lost, 1) end
        return {'seed', scope.name}
      end
      hold.budgets[#hold.budgets + 1] = scope.name
    end
    check_window(number, 'requests', state.requests, scope.requests, 1)
    check_window(number, 'tokens', state.tokens, scope.tokens, hold.tokens)
    if scope.running and state.running + 1 > scope.running then
      refuse(number, 'running', state.running, 0, -1)
    end
    check_budget(number, 'day', state.day_spent, state.day_held, scope.day, hold.micros,
                 ms_to_next_day)
    check_budget(number, 'month', state.month_spent, state.month_held, scope.month, hold.micros,
                 ms_to_next_month)
  end
  if #refusals > 0 then
    if lost then count(lost, 1) end
    return {'refused', today, refusals, usages(item.scopes)}
  end
  count(hold, 1)
  if lost then find_again(organisation, item.id) end
  keep(organisation, item.id, hold, arguments.lease_ms)
  return {'taken', today, {}, usages(item.scopes)}
end

local function is_generation(name) return name and name == redis.call('GET', prefix .. 'generation') end

-- Take holds, each by itself.
function operations.reserve()
  local replies, is_open = {}, is_generation(redis.call('GET', prefix .. 'open:' .. organisation))
  if is_open then reap() end
  for index, item in ipairs(arguments.items) do
    replies[index] = is_open and reserve(item) or {'new'}
  end
  return replies
end

-- Prolong leases, and give back what live requests can no longer use: items of {id, tokens,
-- micros}. Returns the ids of which nothing is known.
function operations.renew()
  local unknown = {}
  for _, item in ipairs(arguments.items) do
    local id, tokens, micros = item[1], item[2], item[3]
    local hold = find(organisation, id)
    if not hold or hold.status ~= 'live' then
      unknown[#unknown + 1] = id
    else
      if hold.tokens ~= tokens or hold.micros ~= micros then
        count(hold, -1)
        hold.tokens, hold.micros = tokens, micros
        count(hold, 1)
        write(organisation, id, hold)
      end
      lend(organisation, id, arguments.lease_ms)
    end
  end
  reap()
  return unknown
end

-- Bring holds to what their gateway says they are, known here or not. Of an item: `is_new`, that
-- no generation of counters has ever had it; `is_restored`, that this one has not; then `ago` (ms)
-- and `day` say when another one took it.
function operations.put()
  for _, item in ipairs(arguments.items) do
    local hold = find(organisation, item.id)
    if hold and hold.status == 'settled' and item.status == 'settled' then
      keep(organisation, item.id, hold, arguments.lease_ms)
    elseif hold and hold.status ~= 'void' then
      count(hold, -1)
      hold.status, hold.tokens, hold.micros = item.status, item.tokens, item.micros
      count(hold, 1)
      if item.status == 'live' then
        find_again(organisation, item.id)
        keep(organisation, item.id, hold, arguments.lease_ms)
      elseif item.status == 'settled' and (item.is_restored or not is_seeded(hold)) then
        find_again(organisation, item.id)
        keep(organisation, item.id, hold, arguments.lease_ms)
      else
        forget(organisation, item.id)
      end
    elseif not hold and item.status == 'void' then
      keep(organisation, item.id, {status = 'void', scopes = {}, budgets = {}, at = now,
                                   requests = 0, tokens = 0, micros = 0}, arguments.lease_ms)
    elseif not hold and item.is_restored then
      hold = {status = item.status, scopes = item.scopes, budgets = item.budgets,
              at = now - (item.ago or 0), day = item.day or today, requests = 1,
              tokens = item.tokens, micros = item.micros}
      for _, scope in ipairs(hold.scopes) do
        -- What was settled before these counters were seeded: the ledger had it, most likely.
        local is_counted = hold.status == 'settled' and not item.is_new and load(scope).seeded == 1
        local micros = hold.micros
        if is_counted then hold.micros = 0 end
        count_in(scope, hold, 1)
        hold.micros = micros
      end
      if hold.status == 'settled' and not item.is_new and is_seeded(hold) then hold.micros = 0 end
      -- Kept for a while once it is settled: the same may be said twice.
      keep(organisation, item.id, hold, arguments.lease_ms)
    end
  end
  reap()
  return #arguments.items
end

-- Begin to count for an organisation, if these are still the counters that the gateway means: of
-- others it does not know how old they are, and who has told them what he holds.
function operations.open()
  if is_generation(arguments.generation) then
    redis.call('SET', prefix .. 'open:' .. organisation, arguments.generation)
  end
  return 1
end

-- Say what a scope had spent without those that are held here, and which requests of it nobody
-- here holds while the ledger has no end of them: items of {id, micros, at}. `organisations`:
-- those that may have holds of the scope, where its tenant is and has been.
function operations.seed()
  local scope, state = arguments.scope, load(arguments.scope)
  if state.seeded == 1 then return 0 end
  state.seeded = 1
  if arguments.day == state.day then state.day_spent = arguments.day_spent end
  if arguments.month == state.month then state.month_spent = arguments.month_spent end
  changed[scope] = true
  local held, owners = {}, {}
  for _, owner in ipairs(arguments.organisations) do
    local packed = redis.call('HGETALL', held_of(owner))
    for index = 1, #packed, 2 do
      local id, hold = packed[index], cmsgpack.unpack(packed[index + 1])
      held[id], owners[id] = hold, owner
      for _, name in ipairs(hold.scopes) do
        if name == scope then count_money(state, hold, 1) end
      end
    end
  end
  for _, item in ipairs(arguments.items) do
    local id, hold = item[1], held[item[1]]
    if hold then
      local has_it = hold.status == 'void'
      for _, name in ipairs(hold.scopes) do has_it = has_it or name == scope end
      if not has_it then
        hold.scopes[#hold.scopes + 1], hold.budgets[#hold.budgets + 1] = scope, scope
        count_in(scope, hold, 1)
        write(owners[id], id, hold)
      end
    else
      hold = {status = 'lost', scopes = {scope}, budgets = {scope}, at = item[3],
              day = day_of(item[3]), requests = 0, tokens = 0, micros = item[2]}
      lose(organisation, id, hold)
      count_in(scope, hold, 1)
    end
  end
  return 1
end

-- Return the ids that are held here.
function operations.held() return redis.call('HKEYS', held_of(organisation)) end

-- Return holds whose gateway is gone, those first that nobody has looked at for longest:
-- {organisation, id, ms since its gateway was found to be gone, tokens, micros} ...
function operations.unsettled()
  reap()
  local found = {}
  for _, member in ipairs(redis.call('ZRANGE', unsettled, 0, MAX_LOST - 1)) do
    local owner, id = owner_and_id(member)
    local hold = find(owner, id)
    if hold and hold.lost_at then
      redis.call('ZADD', unsettled, now, member)
      found[#found + 1] = {owner, id, now - hold.lost_at, hold.tokens, hold.micros}
    else
      redis.call('ZREM', unsettled, member)
    end
  end
  return found
end

-- Return what scopes use now.
function operations.usage() return usages(arguments.scopes) end

local reply = operations[operation]()
store()
return reply
