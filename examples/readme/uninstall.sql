-- The queue and every job in it.
drop schema stowhand cascade;
