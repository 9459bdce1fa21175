-- What is counted for people is counted by an index.
CREATE INDEX stowhand_history_canceled ON stowhand_history (id) WHERE state = 'canceled';
